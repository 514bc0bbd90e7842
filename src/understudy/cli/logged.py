"""What `understudy run` says where it is one of many hosts, or when its lines are for machines: through the same log as
a coordinator, with time, code, run and host."""

from pathlib import Path

from understudy.cli.log import Log
from understudy.cli.terminal import Terminal, advice
from understudy.ledger.records import DecisionRecord, RecoveryRecord
from understudy.protocol.commands import Outcome, StopJob


class LoggedTerminal(Terminal):
    """No live line and no blocks: whatever happens is one line, good news as well."""

    def __init__(self, run_dir: Path, log: Log) -> None:
        super().__init__(run_dir)
        self.log = log

    def tell(self, code: str, text: str, /, **details: object) -> None:
        self.log.tell(code, text, **details)

    def append(self, record: DecisionRecord | RecoveryRecord) -> None:
        self.log.append(record)

    def end(self, stop: StopJob) -> None:
        to_do = f"; {advice(stop.reason)}" if stop.outcome is Outcome.FAILED else ""
        text = f"the job {stop.outcome.value}: {stop.reason}{to_do}"
        self.log.tell("end", text, exit_code=stop.exit_code)
