"""Which jobs the acceptance of accelerators starts, and what it makes of their times. Nothing is started."""

from pathlib import Path

import pytest

from understudy.cli.examination.accelerators.bench import Workbench
from understudy_testkit.faults import accelerator_cost, accelerator_runs
from understudy_testkit.faults.catalogue import Kind


def bench(folder: Path, devices: int, emulated: bool = False, quick: bool = False) -> Workbench:
    device = "queued" if emulated else "cuda"
    return Workbench(
        device=device, family=device, emulated=emulated, quick=quick, environment={}, top=folder, devices=devices
    )


@pytest.mark.parametrize(("devices", "ranks", "spares"), [(2, 2, 1), (4, 2, 1), (8, 6, 2)])
def test_every_rank_is_struck_at_seven_places_and_has_a_twin(
    tmp_path: Path, devices: int, ranks: int, spares: int
) -> None:
    planned = accelerator_runs.faults((Kind.KILL,), accelerator_runs.PLACES, ranks)
    assert len(accelerator_runs.PLACES) == 7 and len(planned) == len({fault.name for fault in planned}) == 7 * ranks
    setup = accelerator_runs.setup_for(bench(tmp_path, devices), "hsdp", planned)
    assert (setup.ranks, setup.spares) == (ranks, spares) and setup.steps > max(fault.step or 0 for fault in planned)
    assert setup.script_args[:2] == ("--device", "cuda") and ranks % accelerator_runs.layout_for(devices).replicas == 0
    steps = [fault.step for fault in planned]
    assert len(set(steps)) == len(steps)


def test_kills_and_stops_of_both_modes_are_trials(tmp_path: Path) -> None:
    names = [trial.name for trial in accelerator_runs.trials(bench(tmp_path, 8))]
    assert names == ["ddp-kill", "ddp-stop", "hsdp-kill", "hsdp-stop"]
    assert [trial.name for trial in accelerator_runs.trials(bench(tmp_path, 2, quick=True))] == ["ddp"]


def test_arms_differ_in_their_launcher_and_their_fence_alone(tmp_path: Path) -> None:
    commands = accelerator_cost.commands(bench(tmp_path, 8), tmp_path)
    base, ours, unfenced = (commands[arm] for arm in ("torchrun", "understudy", "understudy-unfenced"))
    assert base[2] == "torch.distributed.run" and "6" in base and "--mutant" not in (*base, *ours)
    assert [part for part in unfenced if part not in ours][-2:] == ["--mutant", "twins-unfenced"]


def test_a_step_is_measured_once_it_is_warm() -> None:
    moments = [0.0, 10.0, *(10.0 + 0.5 * number for number in range(1, 7))]
    assert accelerator_cost.seconds_per_step(moments) == pytest.approx(0.5)
    measured = {"torchrun": [1.0, 1.1, 0.9], "understudy": [1.02, 1.2, 1.0], "understudy-unfenced": [1.0] * 3}
    assert "1.0200 of torchrun's" in accelerator_cost.judged(measured, emulated=False).sentence
    assert "mean nothing" in accelerator_cost.judged(measured, emulated=True).sentence
