"""Three pictures of a campaign: steps over time, where the time went, how long each fault was felt."""

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from understudy_testkit.benchmark import summary
from understudy_testkit.benchmark.results import Campaign, RunResult

_PARTS = (
    ("startup", "start-up", "#9aa0a6"),
    ("useful", "useful", "#2e7d32"),
    ("reduced", "reduced strength", "#c0ca33"),
    ("wasted", "done again", "#ef6c00"),
    ("downtime", "downtime", "#b71c1c"),
)
_COLOURS = {
    "bare": "#424242",
    "restart": "#1565c0",
    "torchft": "#ef6c00",
    "torchft-tuned": "#8e24aa",
    "torchft-spares": "#00838f",
    "nvrx": "#6d4c41",
    "understudy": "#2e7d32",
}
"""An arm has the same one in all pictures."""
_OTHER = "#c2185b"


def draw_all(campaign: Campaign, folder: Path) -> list[tuple[str, Path]]:
    name = campaign.scenario.name
    drawn = [("Steps over wall clock", folder / f"{name}-steps.png", _steps)]
    drawn.append(("Where the time went", folder / f"{name}-time.png", _split))
    if any(run.faults for run in campaign.runs):
        drawn.append(("How long a fault was felt", folder / f"{name}-recovery.png", _recovery))
    for title, path, draw in drawn:
        figure = draw(campaign, title)
        figure.savefig(path, dpi=110, bbox_inches="tight")
        pyplot.close(figure)
    return [(title, path) for title, path, _ in drawn]


def _shown_runs(campaign: Campaign) -> list[RunResult]:
    """One run per arm: with faults the one with the median wall clock, for `bare` the one without."""
    chosen = []
    for arm in summary.arms_of(campaign):
        runs = sorted(summary.runs_of(campaign, arm, faulty=arm != "bare"), key=lambda run: run.wall_clock)
        if runs:
            chosen.append(runs[len(runs) // 2])
    return chosen


def _steps(campaign: Campaign, title: str) -> Any:
    figure, axes = pyplot.subplots(figsize=(9, 5))
    for run in _shown_runs(campaign):
        colour = _COLOURS.get(run.arm, _OTHER)
        times = [at for at, _ in run.timeline]
        steps = [step for _, step in run.timeline]
        label = f"{run.arm}: {run.wall_clock:.0f} s" + (" (no faults)" if not run.faulty else "")
        axes.plot(times, steps, color=colour, label=label, linewidth=1.6)
        for fault in run.faults:
            reached = max((step for at, step in run.timeline if at <= fault.at), default=0)
            axes.plot(fault.at, reached, marker="x", color=colour, markersize=7, markeredgewidth=1.8)
    axes.set_xlabel("seconds since the start of the command")
    axes.set_ylabel("steps done")
    axes.set_title(f"{title} (x: a fault)\n{campaign.scenario.title}", fontsize=10)
    axes.grid(alpha=0.25)
    axes.legend(fontsize=8)
    return figure


def _split(campaign: Campaign, title: str) -> Any:
    runs = _shown_runs(campaign)
    figure, axes = pyplot.subplots(figsize=(9, 0.6 + 0.55 * len(runs)))
    left = [0.0] * len(runs)
    for part, label, colour in _PARTS:
        widths = [getattr(run.split, part) for run in runs]
        axes.barh(range(len(runs)), widths, left=left, color=colour, label=label)
        left = [so_far + width for so_far, width in zip(left, widths, strict=True)]
    axes.set_yticks(range(len(runs)), [run.arm + ("" if run.faulty else " (no faults)") for run in runs])
    axes.invert_yaxis()
    axes.set_xlabel(f"seconds for {campaign.scenario.work.steps} steps, {len(campaign.scenario.schedule())} faults")
    axes.set_title(f"{title}\n{campaign.scenario.title}", fontsize=10)
    axes.legend(fontsize=8, ncols=5, loc="upper center", bbox_to_anchor=(0.5, -0.35 if len(runs) < 5 else -0.2))
    return figure


def _recovery(campaign: Campaign, title: str) -> Any:
    arms = [arm for arm in summary.arms_of(campaign) if summary.faults_of(campaign, arm)]
    figure, both = pyplot.subplots(1, 2, figsize=(10, 0.9 + 0.55 * len(arms)), sharey=True)
    views = (("stepping", "until it steps again"), ("full_strength", "until all ranks step together again"))
    for axes, (field, label) in zip(both, views, strict=True):
        for place, arm in enumerate(arms):
            faults = summary.faults_of(campaign, arm)
            values = [value for fault in faults if (value := getattr(fault, field)) is not None]
            axes.scatter(values, [place] * len(values), s=18, alpha=0.5, color=_COLOURS.get(arm, _OTHER))
            found = summary.spread(values)
            if found:
                axes.plot([found.median] * 2, [place - 0.3, place + 0.3], color="black", linewidth=1.6)
                axes.annotate(f"{found.median:.2f} s", (found.median, place - 0.34), fontsize=8, ha="center")
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.set_ylim(len(arms) - 0.5, -0.8)
        axes.set_xlabel(f"seconds {label} (logarithmic)")
        axes.set_yticks(range(len(arms)), arms)
        axes.grid(alpha=0.25, axis="x")
    figure.suptitle(f"{title}: each dot is one fault, the line is the median\n{campaign.scenario.title}", fontsize=10)
    figure.tight_layout()
    return figure
