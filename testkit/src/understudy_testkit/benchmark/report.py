"""The report: Markdown from the kept JSON, with pictures when matplotlib is there."""

from collections.abc import Callable, Sequence
from pathlib import Path

from understudy_testkit.benchmark import summary
from understudy_testkit.benchmark.results import Campaign, FaultResult, RunResult
from understudy_testkit.benchmark.summary import Spread
from understudy_testkit.benchmark.targets import targets

_CANNOT_SHOW = """\
## What a desk benchmark cannot show

- One machine, a few cores, all ranks on the same cores: a restarted process takes time from those that train.
- gloo over loopback: no NCCL (its abort and its start-up cost more), no RDMA, no slow or broken links.
- Four ranks: detection, regrouping and healing of thousands of ranks are not in these figures.
- Small models: on real ones, loading a checkpoint and moving state take longer for every arm; process start, imports
  and connection set-up, which weigh most here, take longer too, but not in proportion.
- The step is short, so a lost step costs little here and much there.
"""


def summary_lines(campaign: Campaign) -> list[str]:
    """A few lines for the terminal."""
    lines = [campaign.scenario.title]
    for arm in summary.arms_of(campaign):
        runs = summary.runs_of(campaign, arm, faulty=True) or summary.runs_of(campaign, arm, faulty=False)
        if not runs:
            continue
        wall = summary.spread(run.wall_clock for run in runs)
        assert wall is not None
        times = summary.wall_clock_ratio(campaign, arm)
        ratio = f", {times.median:.2f} x bare" if times else ""
        lost = sum(run.steps_lost for run in runs)
        samples = sum(run.samples_dropped + run.samples_repeated for run in runs)
        failed = [run.failure for run in runs if not run.finished]
        lines.append(
            f"  {arm:<15} wall clock {wall.shown('s', 1)}{ratio}; {lost} steps lost, {samples} samples dropped or "
            f"repeated; weights {summary.weights_verdict(campaign, arm)}"
            + (f"; {len(failed)} RUNS FAILED" if failed else "")
        )
    return lines


def write_report(campaign: Campaign, folder: Path) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    name = campaign.scenario.name
    pictures = _draw(campaign, folder)
    parts = [
        f"# {campaign.scenario.title}\n",
        _work(campaign),
        *(f"![{title}]({path.name})\n" for title, path in pictures),
        "## With faults\n",
        _faulty_table(campaign),
        _targets(campaign),
        _remarks(folder / f"{name}-remarks.md"),
        "## Where the time went\n",
        _split_table(campaign),
        "## After a fault\n",
        _fault_table(campaign),
        "## Without faults\n",
        _steady_table(campaign),
        _failures(campaign),
        _settings(campaign),
        _rules(),
        _CANNOT_SHOW,
    ]
    path = folder / f"{name}.md"
    path.write_text("\n".join(part for part in parts if part))
    return [path, *(picture for _, picture in pictures)]


def _draw(campaign: Campaign, folder: Path) -> list[tuple[str, Path]]:
    try:
        from understudy_testkit.benchmark import plots
    except ImportError:
        return []  # matplotlib belongs to the extra [bench]
    return plots.draw_all(campaign, folder)


def _work(campaign: Campaign) -> str:
    scenario, work = campaign.scenario, campaign.scenario.work
    machine = ", ".join(f"{name}: {value}" for name, value in campaign.machine.items())
    faults = ", ".join(f"{fault.kind.value} rank {fault.rank} at step {fault.step}" for fault in scenario.schedule())
    return (
        f"{work.mode.upper()} of {work.ranks} ranks, {work.steps} steps, {scenario.repetitions} repetitions, arms "
        f"interleaved. Checkpoint every {scenario.checkpoint_every} steps for arms that save; {scenario.spares} spare "
        f"for arms that have spares. Faults, the same for every arm: {faults}.\n\nMachine: {machine}.\n\n"
        f"Figures are medians (least to greatest).\n"
    )


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def _shown(value: Spread | None, unit: str = "s", digits: int = 2) -> str:
    return value.shown(unit, digits) if value else "-"


def _faulty_table(campaign: Campaign) -> str:
    rows = []
    for arm in summary.arms_of(campaign):
        runs = summary.runs_of(campaign, arm, faulty=True)
        bare = arm == "bare"
        runs = summary.runs_of(campaign, arm, faulty=False) if bare else runs
        wall = summary.spread(run.wall_clock for run in runs)
        if wall is None:
            continue
        per_minute = summary.spread(60 * campaign.scenario.work.steps / run.wall_clock for run in runs if run.finished)
        rows.append(
            (
                f"{arm} (no faults)" if bare else arm,
                f"{sum(run.finished for run in runs)} of {len(runs)}",
                _shown(wall, "s", 1),
                _shown(summary.wall_clock_ratio(campaign, arm), "", 2),
                _shown(per_minute, "", 0),
                _shown(summary.spread(float(run.steps_lost) for run in runs), "", 0),
                _shown(summary.spread(float(run.samples_dropped) for run in runs), "", 0),
                _shown(summary.spread(float(run.samples_repeated) for run in runs), "", 0),
                "the reference" if bare else summary.weights_verdict(campaign, arm),
                _shown(summary.spread(run.losses[-1] for run in runs if run.losses), "", 4),
            )
        )
    head = ("arm", "finished", "wall clock", "x bare", "steps per minute", "steps lost", "samples dropped")
    return _table((*head, "samples repeated", "final weights", "final loss"), rows)


def _targets(campaign: Campaign) -> str:
    rows = [
        (target.what, target.wanted, target.measured, "yes" if target.reached else "**no**")
        for target in targets(campaign)
    ]
    head = ("what understudy is meant to reach", "wanted", "measured", "reached")
    return "## Targets\n\n" + _table(head, rows) if rows else ""


def _remarks(path: Path) -> str:
    """What was written by hand about these results: what limits a figure, what went wrong."""
    return path.read_text() if path.exists() else ""


def _split_table(campaign: Campaign) -> str:
    rows = []
    for arm in summary.arms_of(campaign):
        runs = summary.runs_of(campaign, arm, faulty=arm != "bare")
        if runs:
            parts = ("startup", "useful", "reduced", "wasted", "downtime")
            medians = (summary.spread(getattr(run.split, part) for run in runs) for part in parts)
            rows.append((arm, *(_shown(value, "s", 1) for value in medians)))
    return _table(("arm", "start-up", "useful", "reduced strength", "done again", "downtime"), rows)


def _fault_table(campaign: Campaign) -> str:
    kinds = sorted({fault.kind for run in campaign.runs for fault in run.faults})
    rows = []
    for kind in kinds:
        for arm in summary.arms_of(campaign):
            faults = summary.faults_of(campaign, arm, kind)
            if not faults:
                continue
            full = _times(campaign, arm, lambda fault: fault.full_strength)
            stepping = _times(campaign, arm, lambda fault: fault.stepping)
            rows.append(
                (
                    f"{kind}, {arm}",
                    str(len(faults)),
                    _shown(summary.spread(fault.noticed for fault in faults)),
                    _shown(summary.spread(fault.stepping for fault in faults)),
                    stepping,
                    _shown(summary.spread(fault.full_strength for fault in faults)),
                    full,
                )
            )
    head = ("fault, arm", "faults", "noticed after", "stepping after", "x understudy", "full strength after")
    return _table((*head, "x understudy"), rows)


def _times(campaign: Campaign, arm: str, value: Callable[[FaultResult], float | None]) -> str:
    times = summary.times_faster(campaign, arm, value)
    return f"{times:.1f}" if times is not None else "-"


def _steady_table(campaign: Campaign) -> str:
    rows = []
    for arm in summary.arms_of(campaign):
        step = summary.over_runs(campaign, arm, False, lambda run: 1000 * run.step_time)
        if step is not None:
            rows.append((arm, _shown(step, "ms", 1), _shown(summary.steady_ratio(campaign, arm), "", 3)))
    return _table(("arm", "median step", "ratio to bare, same repetition"), rows)


def _failures(campaign: Campaign) -> str:
    failed: list[RunResult] = [run for run in campaign.runs if not run.finished]
    lines = [f"- {run.arm}, repetition {run.repetition + 1}: {run.failure.strip()[-400:]}" for run in failed]
    lines += [f"- {arm} was left out: {why}" for arm, why in campaign.left_out.items()]
    return "## What failed or was left out\n\n" + "\n".join(lines) + "\n" if lines else ""


def _settings(campaign: Campaign) -> str:
    lines = ["## Settings that are not defaults, and why\n"]
    for arm, settings in campaign.settings.items():
        versions = next((run.versions for run in campaign.runs if run.arm == arm), {})
        told = ", ".join(f"{name} {version}" for name, version in versions.items())
        lines.append(f"**{arm}**: {campaign.titles[arm]} ({told}).\n")
        lines += [f"- `{name}`: {why}" for name, why in settings.items()]
        lines.append("")
    return "\n".join(lines)


def _rules() -> str:
    return (
        "## How it was measured\n\n"
        "Faults are signals sent from outside at a planned step to the process that holds the planned rank; each was "
        "seen to have worked. *Stepping*: the first commit that needed the new world. *Full strength*: all ranks "
        "committed one step together, the struck rank by a process that was not struck. *Lost*: committed steps that "
        "were done again. *Dropped, repeated*: samples compared with the plan over the whole run. *Final weights*: bit "
        "for bit against `bare` without faults. All rules: docs/benchmark.md.\n"
    )
