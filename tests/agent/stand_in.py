"""A worker without an engine: speaks the wire protocol like a real one, so that tests of the agent are quick.

    stand_in.py STEPS [--until FILE] [--fail-at N] [--ignore-sigterm] [--helper] [--say TEXT] [--slow-after N]

It lists its process in <run dir>/pids/<member>. `--until`: the last step waits until the file exists. `--slow-after`:
it pretends to have computed 0.2 s in every step, rank 1 half as much more from then on.
"""

import argparse
import os
import select
import signal
import socket
import subprocess
import sys
import traceback
from pathlib import Path

from understudy.detection.progress import Place, ProgressWriter
from understudy.foundation.ids import Generation, MemberId, StepNumber
from understudy.foundation.settings import WorkerSettings
from understudy.ledger.records import TransferRecord
from understudy.protocol import commands as cmd
from understudy.protocol import events as ev
from understudy.protocol.positions import Position
from understudy.wire import framing, messages


class StandIn:
    def __init__(self, args: argparse.Namespace) -> None:
        settings = WorkerSettings.from_environment()
        assert settings is not None
        self.args, self.settings = args, settings
        self.page = ProgressWriter(settings.progress_file)
        self.line = socket.socket(socket.AF_UNIX)
        self.line.connect(settings.socket)
        self.say(messages.Hello(member=settings.member, token=settings.token, pid=os.getpid()))
        self.member = MemberId(settings.member)
        self.generation, self.step = Generation(0), StepNumber(0)
        self.rank: int | None = None
        self.established = False

    def say(self, message: messages.Message | ev.Event) -> None:
        self.line.sendall(framing.frame(messages.encode(message)))

    def listen(self, timeout: float | None) -> messages.FromAgent | None:
        ready, _, _ = select.select([self.line], [], [], timeout)
        if not ready:
            return None
        data = framing.receive(self.line)
        if data is None:
            sys.exit(1)
        word = messages.decode_from_agent(data)
        if isinstance(word, messages.AskActivity):
            self.say(
                messages.ActivityReport(
                    number=word.number, waiting=True, where="here", stack=1, cpu=0.0, control_thread=os.getpid()
                )
            )
            return self.listen(timeout)
        return word

    def mark(self, folder: str, text: str, name: str = "") -> None:
        """Leave a file in the run's folder for the test to see."""
        path = Path(self.settings.run_dir) / folder
        path.mkdir(exist_ok=True)
        (path / (name or self.settings.member)).write_text(text)

    def show(self, place: Place) -> None:
        self.page.show(self.generation, self.step, place)

    def join(self) -> None:
        word = self.listen(0.3)
        if word is None:
            self.page.show(0, -1, Place.PARKED)
            self.say(ev.MemberParked(at=ev.UNTIMED, member=self.member))
            word = self.listen(None)
            while isinstance(
                word, messages.KeepWarm
            ):  # a warm spare is told how much memory to keep; nothing to do here
                word = self.listen(None)
        assert isinstance(word, cmd.AssignRank)
        self.rank, self.generation = word.rank, word.generation
        print(f"rank {self.rank} {self.args.say}\n", end="", flush=True)  # in one piece: two ranks share the output
        if not word.founding:
            self.established = True
            generation = self.generation
            self.say(ev.MemberPrepared(at=ev.UNTIMED, member=self.member, generation=generation, twin_key="k"))
            self.take(self.listen(None), holds=None)

    def take(self, word: messages.FromAgent | None, holds: StepNumber | None) -> None:
        """Go through a recovery, to its end."""
        while True:
            if isinstance(word, cmd.AbandonGeneration) and word.generation > self.generation:
                self.generation = word.generation
                self.show(Place.RECOVERING)
                self.say(
                    ev.PositionReported(
                        at=ev.UNTIMED,
                        member=self.member,
                        generation=self.generation,
                        position=Position(holds=holds, established=self.established),
                        twin_key="k",
                    )
                )
            elif isinstance(word, cmd.ResumeAt) and word.generation == self.generation:
                self.step = word.step
                timings = {"regroup": 0.001, "transfer": 0.002}
                transfer = self.transfer() if holds is None else None
                self.say(messages.Measured(generation=self.generation, timings=timings, transfer=transfer))
                self.say(ev.MemberResumed(at=ev.UNTIMED, member=self.member, generation=self.generation))
                return
            word = self.listen(None)

    def transfer(self) -> TransferRecord:
        return TransferRecord(receiver=self.rank or 0, given={0: 10}, seconds=0.001, checked=2)

    def train(self) -> None:
        shown = None
        while self.step < self.args.steps:
            if shown != (self.generation, self.step):  # a rank that waits in a collective does not move
                self.show(Place.IN_STEP)
                shown = (self.generation, self.step)
            word = self.listen(0.01)
            if isinstance(word, cmd.AbandonGeneration):
                self.take(word, holds=self.step)
                continue
            if self.args.fail_at == self.step and self.rank == 0:
                raise ValueError("a bug in the script")
            last = self.step == self.args.steps - 1
            if last and self.args.until is not None and not os.path.exists(self.args.until):
                self.mark("last", "")
                continue
            if self.args.slow_after is not None:
                slow = self.rank == 1 and self.step >= self.args.slow_after
                self.page.show_compute(self.step, 0.3 if slow else 0.2)
            self.step = StepNumber(self.step + 1)
            if not self.established:
                self.established = True
                self.say(
                    ev.MemberEstablished(
                        at=ev.UNTIMED, member=self.member, generation=self.generation, twin_key="k", holdings=(1,)
                    )
                )
            self.show(Place.BETWEEN_STEPS)

    def finish(self) -> None:
        self.show(Place.FINISHED)
        while True:
            self.say(ev.MemberFinished(at=ev.UNTIMED, member=self.member, generation=self.generation))
            word = self.listen(0.2)
            if isinstance(word, cmd.ReleaseMembers):
                self.show(Place.RELEASED)
                return
            if isinstance(word, cmd.AbandonGeneration):
                self.take(word, holds=self.step)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("steps", type=int)
    parser.add_argument("--until")
    parser.add_argument("--fail-at", type=int)
    parser.add_argument("--ignore-sigterm", action="store_true")
    parser.add_argument("--helper", action="store_true")
    parser.add_argument("--say", default="speaks")
    parser.add_argument("--slow-after", type=int)
    args = parser.parse_args()
    if args.ignore_sigterm:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    stand_in = StandIn(args)
    stand_in.mark("pids", str(os.getpid()))
    if args.helper:
        helper = subprocess.Popen(["sleep", "300"])
        stand_in.mark("pids", str(helper.pid), f"helper-of-{stand_in.settings.member}")
    try:
        stand_in.join()
        stand_in.train()
        stand_in.finish()
    except ValueError as error:
        traceback.print_exc()
        stand_in.say(messages.ScriptFailed(step=stand_in.step, summary=f"ValueError: {error}", fingerprint="f"))
        sys.exit(7)


if __name__ == "__main__":
    main()
