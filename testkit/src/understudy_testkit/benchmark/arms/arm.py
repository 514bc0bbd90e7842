"""What the runner needs to know of an arm."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from understudy_testkit.benchmark.scenario import Scenario


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPaths:
    """Where one run happens."""

    folder: Path  # of this run; the arm may keep checkpoints and logs in it
    scenario_file: Path  # the scenario as JSON, for workers

    @property
    def worker_arguments(self) -> tuple[str, ...]:
        return ("--scenario", str(self.scenario_file), "--folder", str(self.folder))


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    arguments: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """`settings`: every setting that is not a default, with the reason; it is printed in the report."""

    name: str
    title: str
    settings: Mapping[str, str]
    command: Callable[[Scenario, RunPaths], Command]
    missing: Callable[[], str | None] = lambda: None  # why it cannot run here
    survives_faults: bool = True
    modes: tuple[str, ...] = ("ddp",)
    packages: tuple[str, ...] = ("torch",)  # whose versions are recorded
