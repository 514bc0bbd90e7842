"""What a scheduler says of a node, to what is asked of the job."""

from understudy.foundation.ids import HostId
from understudy.protocol.requests import DrainHost, UndrainHost
from understudy.schedulers.node_rules import HostsKnown, NodeSeen, Verdict, requests

A, B = HostId("a"), HostId("b")


def known(drained: tuple[HostId, ...] = (), asked: tuple[HostId, ...] = ()) -> HostsKnown:
    return HostsKnown(present=(A,), drained=drained, asked=asked)


def seen(verdict: Verdict, host: HostId = A, reason: str = "") -> tuple[NodeSeen, ...]:
    return (NodeSeen(host=host, verdict=verdict, state="draining", reason=reason),)


def test_a_node_that_is_wanted_back_is_drained() -> None:
    asked = requests(seen(Verdict.WANTED_BACK, reason="fan 3"), known(), "Slurm", 7.0)
    assert asked == (DrainHost(at=7.0, host=A, reason="Slurm says that node a is draining: fan 3"),)
    (asked_again,) = requests(seen(Verdict.WANTED_BACK), known(asked=(A,)), "Slurm", 8.0)
    assert asked_again.reason == "Slurm says that node a is draining"


def test_one_that_is_drained_already_is_left_alone() -> None:
    assert requests(seen(Verdict.WANTED_BACK), known(drained=(A,)), "Slurm", 7.0) == ()


def test_a_drain_is_called_off_only_by_the_watch_that_asked_for_it() -> None:
    assert requests(seen(Verdict.IN_USE), known(drained=(A,)), "Slurm", 7.0) == ()
    (asked,) = requests(seen(Verdict.IN_USE), known(drained=(A,), asked=(A,)), "Slurm", 7.0)
    assert isinstance(asked, UndrainHost) and asked.host == A


def test_a_node_of_which_nothing_is_known_leads_to_nothing() -> None:
    assert requests(seen(Verdict.UNKNOWN), known(), "Slurm", 7.0) == ()
    assert requests(seen(Verdict.UNKNOWN), known(drained=(A,), asked=(A,)), "Slurm", 7.0) == ()


def test_nodes_that_are_no_hosts_of_the_job_do_not_count() -> None:
    assert requests(seen(Verdict.WANTED_BACK, host=B), known(), "Slurm", 7.0) == ()
