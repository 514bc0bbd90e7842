"""Versions beside each other: what a newer one adds is ignored, and one that is too far away is told so."""

import msgspec
import pytest

from understudy.errors import WireError
from understudy.foundation.ids import Generation, MemberId, Rank, StepNumber
from understudy.protocol import events as ev
from understudy.protocol.commands import KillMember, ReleaseMembers
from understudy.protocol.commit import judge
from understudy.protocol.positions import Position
from understudy.protocol.reasons import Code, because
from understudy.wire import host_messages as wire
from understudy.wire import versions
from understudy.wire.messages import decode_from_worker, encode


@pytest.mark.parametrize("protocol", [0, versions.PROTOCOL + 2, versions.PROTOCOL + 100])
def test_whoever_is_too_far_away_is_told_who_must_be_upgraded(protocol: int) -> None:
    with pytest.raises(WireError) as refused:
        versions.check("the coordinator", "host a", protocol, "9.9")
    assert refused.value.kind == "version"
    older = "host a" if protocol < versions.PROTOCOL else "the coordinator"
    assert f"version {versions.VERSION}" in str(refused.value) and f"upgrade {older} first" in str(refused.value)


@pytest.mark.parametrize("protocol", [versions.PROTOCOL, versions.PROTOCOL + 1])
def test_neighbours_work_together(protocol: int) -> None:
    versions.check("the coordinator", "host a", protocol, "0.2")


def newer(message: wire.FromHost | wire.ToHost, /, **added: object) -> bytes:
    """As a version would send it that has more to say."""
    return msgspec.msgpack.encode({**msgspec.msgpack.decode(wire.encode(message)), **added})


def test_fields_that_are_not_known_are_ignored() -> None:
    farewell = wire.Farewell(reason="enough")
    assert wire.decode_from_host(newer(farewell, mood="relieved")) == farewell
    kill = wire.Order(term=1, command=KillMember(member=MemberId("m-1"), reason=because(Code.TOLD, text="why not")))
    assert wire.decode_to_host(newer(kill, gently=True)) == kill
    inside = {**msgspec.to_builtins(kill.command), "softly": True}
    assert wire.decode_to_host(newer(kill, command=inside)) == kill


def test_an_older_coordinator_does_not_commit_what_devices_say() -> None:
    """It knows nothing of asynchronous arrivals, so to it those ranks have not arrived: it decides for a retry."""
    position = Position(holds=StepNumber(7), arrived_asynchronously=True)
    report = ev.PositionReported(
        at=0.0, member=MemberId("m-1"), generation=Generation(2), position=position, twin_key="all"
    )
    told = msgspec.msgpack.decode(encode(report))
    assert decode_from_worker(msgspec.msgpack.encode(told)) == report
    assert told["position"].pop("arrived_asynchronously")
    known = decode_from_worker(msgspec.msgpack.encode(told))
    assert isinstance(known, ev.PositionReported) and not known.position.at_fence
    verdict = judge({Rank(0): known.position})
    assert verdict is not None and verdict.committed is None


def test_a_kind_that_is_not_known_is_ignored_and_nonsense_is_not() -> None:
    unknown = msgspec.msgpack.encode({"type": "Temperature", "celsius": 90})
    assert wire.decode_from_host(unknown) == wire.Unknown(kind="Temperature") == wire.decode_to_host(unknown)
    for nonsense in ({"type": "Order", "term": "x"}, {"type": ""}, {"type": 3}, {"kind": "Order"}, {"type": "a b"}):
        with pytest.raises(WireError):
            wire.decode_to_host(msgspec.msgpack.encode(nonsense))
    with pytest.raises(WireError):
        wire.decode_from_host(msgspec.msgpack.encode({"type": "Order", "term": 1}))  # known, and not a host's to say


def test_a_new_kind_of_command_is_ignored_like_any_other() -> None:
    """It is inside of an order that is known. Before, it ended the line, and was told again on the next one."""
    known = wire.Order(term=1, command=ReleaseMembers(generation=Generation(1), members=(MemberId("m-1"),)))
    new = newer(known, command={"type": "Whistle", "tune": "any"})
    assert wire.decode_to_host(new) == wire.Unknown(kind="Whistle")
    recorded = {"type": "RecordGeneration", "generation": 1, "founded_in": 1, "holders": []}
    for nonsense in ({"type": "ReleaseMembers", "generation": "x"}, {"type": "a b"}, {}, "Whistle", recorded):
        with pytest.raises(WireError):
            wire.decode_to_host(newer(known, command=nonsense))


@pytest.mark.parametrize(("protocol", "older"), [(1, "a"), (5, "b")])
def test_hosts_that_are_too_far_from_each_other_are_told_which_is_the_older_one(protocol: int, older: str) -> None:
    with pytest.raises(WireError, match=f"upgrade host {older} first") as refused:
        versions.check_between("a", protocol, {"c": protocol, "b": 3})
    assert refused.value.kind == "version"
    versions.check_between("a", 4, {"b": 3, "c": 5})


def test_an_event_that_is_not_known_is_new_and_a_forbidden_one_is_not() -> None:
    def told(kind: str) -> bytes:
        return msgspec.msgpack.encode({"type": "Happened", "event": {"type": kind, "at": 0.0}})

    assert wire.decode_from_host(told("FanFailed")) == wire.Unknown(kind="FanFailed")
    for known in (ev.MemberLost.__name__, ev.JobStarted.__name__, ev.StopRequested.__name__, "MoveRanks"):
        with pytest.raises(WireError):
            wire.decode_from_host(told(known))
    with pytest.raises(WireError, match="may not tell"):
        wire.from_event(ev.StopRequested(at=0.0, reason="why not", exit_code=1))
