"""Who gives state, when a replacement is useless, and when a process may be started."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from understudy.foundation.copying import copied
from understudy.foundation.ids import Generation, HostId, MemberId, Rank, StepNumber
from understudy.protocol.causes import Cause, CauseKind
from understudy.protocol.commands import DecisionKind, RecordDecision, StartMember
from understudy.protocol.crash_loop import CrashLoop
from understudy.protocol.donors import NoDonor, choose_donors, without_twin
from understudy.protocol.hosts import THIS_HOST, Hosts
from understudy.protocol.policy import Policy
from understudy.protocol.pool import PoolState, SparePool
from understudy.protocol.reasons import Code, because
from understudy.protocol.roster import Member, Roster, Standing


def ranks(*numbers: int) -> list[Rank]:
    return [Rank(number) for number in numbers]


def test_donors_are_twins_and_are_spread() -> None:
    keys = dict.fromkeys(ranks(0, 1, 2, 3), "same")
    assert choose_donors(ranks(2, 3), ranks(0, 1), keys, {}) == {2: (0, 1), 3: (1, 0)}


def test_no_twin_is_said() -> None:
    keys = {Rank(0): "a", Rank(1): "b"}
    answer = choose_donors(ranks(1), ranks(0), keys, {"a": frozenset({1}), "b": frozenset({2})})
    assert isinstance(answer, NoDonor)
    assert answer.rank == 1 and answer.reason == because(Code.NO_LIVE_TWIN, rank=1)


def test_a_rank_that_never_said_what_it_holds_has_no_donor() -> None:
    assert isinstance(choose_donors(ranks(1), ranks(0), {Rank(0): "a"}, {}), NoDonor)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.sampled_from("abc"), min_size=2, max_size=16), st.data())
def test_every_donor_is_a_holder_with_the_same_key(letters: list[str], data: st.DataObject) -> None:
    keys = {Rank(number): letter for number, letter in enumerate(letters)}
    receivers = data.draw(st.sets(st.sampled_from(sorted(keys))))
    holders = keys.keys() - receivers
    answer = choose_donors(receivers, holders, keys, {}, limit=3)
    if isinstance(answer, NoDonor):
        assert all(keys[holder] != keys[answer.rank] for holder in holders)
        return
    assert answer.keys() == receivers
    for receiver, donors in answer.items():
        assert 1 <= len(donors) <= 3 and len(set(donors)) == len(donors)
        assert all(donor in holders and keys[donor] == keys[receiver] for donor in donors)


def test_several_ranks_that_hold_parts_of_it_make_up_for_a_twin() -> None:
    """Rows share one piece and columns another: nobody has a twin, but every piece has a second holder."""
    keys = {Rank(0): "A1", Rank(1): "A2", Rank(2): "B1", Rank(3): "B2"}
    held = {"A1": frozenset({1, 3}), "A2": frozenset({1, 4}), "B1": frozenset({2, 3}), "B2": frozenset({2, 4})}
    assert choose_donors(ranks(0), ranks(1, 2, 3), keys, held) == {0: (1, 2)}
    assert isinstance(choose_donors(ranks(0), ranks(1, 3), keys, held), NoDonor), "piece 3 died with rank 2"
    assert without_twin(keys, held) == ()


def test_ranks_without_a_twin_are_found() -> None:
    keys = {Rank(0): "a", Rank(1): "a", Rank(2): "b", Rank(3): "c"}
    held = {"a": frozenset({1, 2}), "b": frozenset({1}), "c": frozenset({1, 9})}
    assert without_twin(keys, held) == (3,), "rank 2 holds nothing that others do not hold as well"
    assert without_twin({Rank(0): "a", Rank(1): "b"}, {}) == (0, 1), "nothing is known of what they hold"


def failure(step: int, text: str = "ValueError") -> Cause:
    return Cause(kind=CauseKind.SCRIPT_ERROR, detail=text, fingerprint=text, step=StepNumber(step))


def test_the_same_failure_twice_in_the_same_step_is_the_scripts_fault() -> None:
    blame, limit = CrashLoop(), 5
    assert blame.why_give_up(Rank(1), failure(3), limit) is None
    again = because(Code.FAILED_TWICE, rank=1, step=3, cause=failure(3).reason)
    assert blame.why_give_up(Rank(1), failure(3), limit) == again


def test_another_step_rank_or_failure_is_news() -> None:
    blame, limit = CrashLoop(), 5
    assert blame.why_give_up(Rank(1), failure(3), limit) is None
    assert blame.why_give_up(Rank(1), failure(4), limit) is None
    assert blame.why_give_up(Rank(2), failure(4), limit) is None
    assert blame.why_give_up(Rank(1), failure(4, "KeyError"), limit) is None


def test_signals_from_outside_prove_nothing_until_the_limit() -> None:
    blame, limit = CrashLoop(), 2
    killed = Cause(kind=CauseKind.SIGNAL, detail="signal 9", exit_code=-9, step=StepNumber(3))
    assert not killed.own_fault
    assert blame.why_give_up(Rank(0), killed, limit) is None
    copy = copied(blame)
    assert blame.why_give_up(Rank(0), killed, limit) is None
    too_often = because(Code.LOST_TOO_OFTEN, rank=0, count=3, step=3, limit=2)
    assert blame.why_give_up(Rank(0), killed, limit) == too_often
    assert copy.why_give_up(Rank(0), killed, limit) is None


def test_whose_fault_an_end_is() -> None:
    assert Cause(kind=CauseKind.SIGNAL, detail="signal 11", exit_code=-11).own_fault
    assert Cause(kind=CauseKind.EXIT, detail="exit 1").own_fault
    assert not Cause(kind=CauseKind.HANG, detail="hang", exit_code=-9).own_fault


def pool_of(**limits: int) -> SparePool:
    policy = replace(Policy(world_size=2), **limits)  # type: ignore[arg-type]
    hosts = Hosts()
    hosts.join(THIS_HOST, policy.world_size, policy.spares)
    return SparePool(policy, Roster(), hosts, PoolState())


def test_the_pool_is_filled_to_its_size_and_says_why() -> None:
    pool = pool_of(spares=2)
    why = because(Code.REQUESTED, text="a spare was lost")
    commands = pool.refill(1.0, Generation(1), reason=why)
    started = [command.member for command in commands if isinstance(command, StartMember)]
    assert started == ["m-0", "m-1"]
    assert all(c.reason == why for c in commands if isinstance(c, RecordDecision))
    assert pool.refill(2.0, Generation(1)) == []


def test_spares_that_die_cold_end_the_refilling_and_this_is_said_once() -> None:
    pool = pool_of(spares=1, spare_failures_in_a_row=2)
    cold = Member(MemberId("m-7"), Standing.STARTING)
    pool.on_spare_lost(cold, was_warm=False)
    pool.on_spare_lost(cold, was_warm=False)
    (complaint,) = pool.refill(1.0, Generation(1))
    assert isinstance(complaint, RecordDecision) and complaint.kind is DecisionKind.NO_REFILL
    assert pool.refill(2.0, Generation(1)) == []
    pool.on_spare_warm(cold)
    assert pool.cannot_start(2.0) is None


def test_a_warm_spare_comes_before_a_starting_one_before_a_new_process() -> None:
    pool = pool_of(spares=2)
    pool.refill(0.0, Generation(1), first=True)
    warm = pool.roster.members[next(reversed(pool.roster.members))]
    pool.roster.park(warm)
    member, commands = pool.take(Rank(0), 0.0, THIS_HOST)
    assert member is warm and commands == []


def test_why_ranks_cannot_be_manned() -> None:
    assert pool_of(spares=0).cannot_fill(1, 0.0) == because(Code.NO_SPARES_OFFERED)
    assert pool_of(spares=0).cannot_fill(0, 0.0) is None
    spent = pool_of(spares=1, max_replacements=0)
    assert spent.cannot_fill(1, 0.0) == because(Code.NO_REPLACEMENTS_LEFT, limit=0)


def test_a_failure_that_repeats_anywhere_is_not_tried_again() -> None:
    cause = Cause(kind=CauseKind.SCRIPT_ERROR, detail="UsageError: x", step=StepNumber(0), repeats=True)
    why = because(Code.FAILS_EVERYWHERE, rank=0, step=0, cause=cause.reason)
    assert CrashLoop().why_give_up(Rank(0), cause, 3) == why


def test_a_spare_on_its_way_to_a_drained_host_is_nothing_to_wait_for() -> None:
    """Then whoever is ended makes room for a new process, and a rank that hangs is not waited for without an end."""
    pool = pool_of(spares=0)
    for number in range(2):
        pool.roster.seat(pool.roster.new_spare(), Rank(number), Standing.ACTIVE, Generation(1), 0.0)
    other = pool.hosts.join(HostId("other"), 0, 1)
    pool.roster.new_spare(other.id)
    assert not pool.is_empty_for_good(1.0)
    other.draining = True
    assert pool.roster.starting and pool.is_empty_for_good(1.0)


def test_a_rank_that_is_ended_leaves_its_place_to_a_spare() -> None:
    """All places are taken, an operator has asked for two spares, and one of them is there."""
    pool = pool_of(spares=0)
    pool.hosts.by_id[THIS_HOST].spares = 2
    for number in range(2):
        pool.roster.seat(pool.roster.new_spare(), Rank(number), Standing.ACTIVE, Generation(1), 0.0)
    pool.roster.new_spare()
    assert not pool.is_empty_for_good(1.0) and pool.cannot_fill(1, 1.0) is not None
    assert pool.has_spares(1, 1.0, [THIS_HOST]) and pool.cannot_fill(1, 1.0, [THIS_HOST]) is None
    assert not pool.has_spares(2, 1.0, [THIS_HOST])
