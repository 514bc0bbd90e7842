import json
from pathlib import Path

import pytest

from understudy_testkit.faults.catalogue import (
    AT_FENCE,
    IN_LOOP,
    IN_MOVE,
    IN_QUEUE,
    IN_RECOVERY,
    IN_STEP,
    Fault,
    FaultPoint,
    Kind,
    load_schedule,
    save_schedule,
)
from understudy_testkit.faults.injector import fired


def test_a_schedule_survives_its_file(tmp_path: Path) -> None:
    faults = [
        Fault(name=f"{kind}-{place}", kind=kind, rank=rank, place=place, step=None if place in IN_RECOVERY else 4)
        for rank, kind in enumerate(Kind)
        for place in FaultPoint
    ]
    faults.append(Fault(name="x", kind=Kind.KILL, rank=0, place=FaultPoint.REGROUP, joiner=True, after="y", times=3))
    save_schedule(tmp_path / "faults.json", faults)
    assert load_schedule(tmp_path / "faults.json") == tuple(faults)


def test_every_place_is_in_a_step_in_a_loop_or_in_a_recovery() -> None:
    assert sorted((*IN_STEP, *AT_FENCE, *IN_RECOVERY, *IN_MOVE, *IN_QUEUE, *IN_LOOP)) == sorted(FaultPoint)


def test_an_unknown_kind_is_refused(tmp_path: Path) -> None:
    (tmp_path / "faults.json").write_text('[{"name": "a", "kind": "melt", "rank": 0, "place": "forward"}]')
    with pytest.raises(ValueError, match="melt"):
        load_schedule(tmp_path / "faults.json")


def test_proofs_come_in_the_order_of_time(tmp_path: Path) -> None:
    for name, at in (("b", 2.0), ("a", 3.0), ("c", 1.0)):
        (tmp_path / f"{name}.0.json").write_text(f'{{"fault": "{name}", "at": {at}}}')
    assert [proof["fault"] for proof in fired(tmp_path)] == ["c", "b", "a"]


def test_a_script_of_an_earlier_version_is_not_told_of_fields_that_are_not_used(tmp_path: Path) -> None:
    fault = Fault(name="kill", kind=Kind.KILL, rank=1, place=FaultPoint.COLLECTIVE, step=6)

    save_schedule(tmp_path / "faults.json", [fault])

    assert json.loads((tmp_path / "faults.json").read_text()) == [
        {"name": "kill", "kind": "kill", "rank": 1, "place": "collective", "step": 6}
    ]
