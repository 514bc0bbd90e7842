"""What `understudy status` says of a job that stands still, or trains without some of its ranks."""

import time
from typing import Any

from understudy.cli.status import host_lines, job_lines, member_lines


def job(**changes: Any) -> dict[str, Any]:
    plain: dict[str, Any] = {
        "job": "llm",
        "stage": "training",
        "generation": 2,
        "committed_step": 120,
        "committed_step_unchanged_seconds": 0.4,
        "degraded": False,
        "absent_ranks": [],
        "ranks_up": 4,
        "world_size": 4,
        "spares_warm": 1,
        "spares_starting": 0,
        "outcome": None,
        "reason": None,
    }
    return {**plain, **changes}


def test_the_step_and_for_how_long_there_was_no_further_one() -> None:
    assert job_lines(job())[0] == "job llm: training, generation 2, step 120"
    assert job_lines(job(committed_step_unchanged_seconds=90.0))[0].endswith(", step 120, no further one for 90 s")
    assert job_lines(job(committed_step=None, committed_step_unchanged_seconds=None))[0].endswith("generation 2")


def test_a_degraded_world_is_called_so_and_its_ranks_are_not_vacant() -> None:
    world = job(degraded=True, absent_ranks=[1], ranks_up=3)
    assert any(line.startswith("degraded: the world goes on without rank 1 (1 of 4)") for line in job_lines(world))
    held = [
        {"rank": rank, "member": f"m-{rank}", "host": "a", "standing": "active", "step": 120, "connected": True}
        for rank in (0, 2)
    ]
    rows = [line.split() for line in member_lines(held, world)]
    assert ["1", "none", "-", "absent", "-"] in rows and ["3", "none", "-", "vacant", "-"] in rows


def test_a_hosts_certificate_that_ends_within_a_week_is_named() -> None:
    plain = {"state": "present", "ranks": [0], "spares_warm": 0, "spares_wanted": 0}
    soon, late = int(time.time() + 3 * 86400), int(time.time() + 30 * 86400)
    hosts = [{"host": "a", **plain, "certificate_ends": late}, {"host": "b", **plain, "certificate_ends": soon}]
    day = time.strftime("%Y-%m-%d", time.gmtime(soon))
    assert host_lines(hosts)[-1].startswith(f"the certificate of host b ends on {day}")
    assert not any("certificate of host a" in line for line in host_lines(hosts))
    assert "certificate" not in "".join(host_lines([{"host": "a", **plain}, {"host": "b", **plain}]))
