"""What `understudy run` says where it is one of many hosts, or when its lines are for machines: through the same log as
a coordinator, with time, code, run and host."""

from pathlib import Path

from understudy.cli.log import Log
from understudy.cli.terminal import IN_DOUBT, Terminal
from understudy.ledger.records import DecisionRecord, RecoveryRecord
from understudy.protocol.advice import advice_on
from understudy.protocol.commands import Outcome, StopJob
from understudy.protocol.sentences import sentence


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
        to_do = f"; {advice_on(stop.reason, IN_DOUBT)}" if stop.outcome is Outcome.FAILED else ""
        text = f"the job {stop.outcome.value}: {sentence(stop.reason)}{to_do}"
        self.log.tell("end", text, exit_code=stop.exit_code, reason=stop.reason.code)
