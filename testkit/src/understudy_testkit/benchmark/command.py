"""`understudy bench`: run a scenario for all arms, and make the report from what was kept."""

import argparse
import sys
import time
from pathlib import Path

import msgspec

from understudy.errors import UsageError
from understudy_testkit.benchmark import results
from understudy_testkit.benchmark.report import summary_lines, write_report
from understudy_testkit.benchmark.runner import run_campaign
from understudy_testkit.benchmark.scenario import load_scenario


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "compare approaches under the same faults, and write the report"
    actions = parser.add_subparsers(dest="action", required=True, metavar="action")
    run = actions.add_parser("run", help="run a scenario; an interrupted one goes on where it stopped")
    run.add_argument("scenario", type=Path, help="a file of benchmarks/scenarios/")
    run.add_argument("--arms", default="", help="only these, separated by commas")
    run.add_argument("--repetitions", type=int, help="instead of the scenario's number")
    run.add_argument("--folder", type=Path, help="where runs are kept (default: benchmark-runs/NAME)")
    run.add_argument("--results", type=Path, default=Path("benchmarks/results"), help="where NAME.json is written")
    run.add_argument("--quiet-timeout", type=float, default=60.0, help="seconds to wait for a quiet machine")
    report = actions.add_parser("report", help="write Markdown and pictures from the kept JSON")
    report.add_argument("results", type=Path, nargs="*", help="JSON files (default: all of benchmarks/results/)")
    report.add_argument("--to", type=Path, default=Path("benchmarks/results"), help="where the report is written")


def main(args: argparse.Namespace) -> int:
    return _run(args) if args.action == "run" else _report(args)


def _run(args: argparse.Namespace) -> int:
    scenario = load_scenario(args.scenario)
    if args.repetitions:
        scenario = msgspec.structs.replace(scenario, repetitions=args.repetitions)
    folder = args.folder or Path("benchmark-runs") / scenario.name
    arms = tuple(name for name in args.arms.split(",") if name)
    show = _Progress()
    campaign = run_campaign(scenario, folder, arms, show, args.quiet_timeout)
    show.end()
    path = args.results / f"{scenario.name}.json"
    results.save(path, campaign)
    print("\n".join(summary_lines(campaign)))
    print(f"kept in {path}; `understudy bench report {path}` writes the report")
    return 0 if all(run.finished for run in campaign.runs) else 1


def _report(args: argparse.Namespace) -> int:
    paths = args.results or sorted(Path("benchmarks/results").glob("*.json"))
    if not paths:
        raise UsageError("there are no results; `understudy bench run benchmarks/scenarios/kills.toml` makes some")
    for path in paths:
        written = write_report(results.load(path), args.to)
        print(f"{path}: wrote {', '.join(str(file) for file in written)}")
    return 0


class _Progress:
    """One line that is written over on a terminal, and a line every ten seconds elsewhere."""

    def __init__(self) -> None:
        self._tty = sys.stderr.isatty()
        self._last, self._turn = 0.0, -1

    def __call__(self, text: str, done: int, of: int) -> None:
        now = time.monotonic()
        line = f"[{done + 1}/{of}] {text}"
        if self._tty:
            width = 30
            bar = "#" * (width * done // of)
            print(f"\r\x1b[K[{bar:<{width}}] {line}", end="", file=sys.stderr, flush=True)
        elif now - self._last > 10 or done != self._turn:
            self._last, self._turn = now, done
            print(line, file=sys.stderr, flush=True)

    def end(self) -> None:
        if self._tty:
            print(file=sys.stderr)
