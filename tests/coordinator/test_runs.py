"""A job's name is used again and again: no run is taken for another one, and none goes on without its hosts."""

import pytest
from tests.coordinator.leading_play import POLICY, Cluster, Host, change_leaders, play

from understudy.coordinator import runs
from understudy.coordinator.leading import Leader
from understudy.coordinator.runs import NOTHING_PAST, Past, RunOver
from understudy.errors import SettingsError, WireError
from understudy.protocol.commands import Outcome
from understudy.protocol.sentences import sentence
from understudy.protocol.stages import Stage


async def succeed(cluster: Cluster, *, all_told: bool = True) -> str:
    """A whole run, from its first host to its end; returns which."""
    leader = await cluster.lead()
    await cluster.train()
    assert leader.coordinator is not None
    leader.coordinator.request_stop("enough", 0)
    await cluster.settle()
    if all_told:
        await leader.record_farewell()
    return leader.run


async def next_coordinator(cluster: Cluster, *, fresh: bool, new_run: bool = False) -> Leader:
    """Another process leads. `fresh`: it was started after the last one's end, and looks what is there."""
    past = await runs.look_back(cluster.keeper, "job", new_run=new_run) if fresh else NOTHING_PAST
    return await change_leaders(cluster, past)


def new_hosts(cluster: Cluster) -> None:
    """The agents were started again."""
    cluster.a, cluster.b = Host("a", agent="new a"), Host("b", agent="new b")
    cluster.spare = Host("spare", ranks=0, spares=1, agent="new spare")


@pytest.mark.parametrize("all_told", [True, False])
def test_a_second_job_of_the_same_name_runs(all_told: bool) -> None:
    async def scene(cluster: Cluster) -> None:
        first = await succeed(cluster, all_told=all_told)
        late = cluster.a.greeting()
        leader = await next_coordinator(cluster, fresh=True)
        assert not leader.over.is_set() and leader.outcome is None
        with pytest.raises(RunOver) as over:
            leader.welcome(late)
        assert over.value.stop.outcome is Outcome.STOPPED and sentence(over.value.stop.reason) == "enough"
        new_hosts(cluster)
        await cluster.train()
        assert leader.coordinator is not None and leader.coordinator.machine.generation == 1
        assert leader.run not in ("", first) and cluster.a.run == leader.run
        with pytest.raises(RunOver):
            leader.welcome(late)
        assert any(f"run {first} is past" in text for text in cluster.said)

    play(scene)


def test_a_standby_tells_how_the_run_ended_for_which_it_stood_by() -> None:
    async def scene(cluster: Cluster) -> None:
        await succeed(cluster, all_told=False)
        leader = await next_coordinator(cluster, fresh=False)
        assert leader.over.is_set() and leader.outcome is not None and sentence(leader.outcome.reason) == "enough"
        with pytest.raises(WireError, match="is for the next one"):
            leader.welcome(Host("a", agent="new").greeting())
        assert not leader.welcome(cluster.a.greeting()).closed

    play(scene)


def test_a_run_under_way_goes_on_only_with_one_of_its_hosts() -> None:
    """However long that takes: a leader that no host has found yet knows nothing that it could decide on."""

    async def scene(cluster: Cluster) -> None:
        leader = await cluster.lead()
        await cluster.train()
        run = leader.run
        leader = await next_coordinator(cluster, fresh=True)
        with pytest.raises(WireError, match="is under way") as refused:
            leader.welcome(Host("c", ranks=0, spares=1).greeting())
        assert refused.value.kind == "awaiting" and leader.coordinator is None
        cluster.clock.advance_to(100.0 + 40 * POLICY.takeover_patience)
        leader._tick()
        assert leader.outcome is None
        await cluster.attend()
        assert leader.run == run and leader.coordinator is not None
        assert leader.coordinator.machine.stage is Stage.TRAINING
        assert not leader.welcome(Host("c", ranks=0, spares=1).greeting()).closed

    play(scene)


def test_an_abandoned_run_is_not_taken_for_the_next() -> None:
    async def scene(cluster: Cluster) -> None:
        await cluster.lead()
        await cluster.train()
        old = cluster.b.greeting()
        leader = await next_coordinator(cluster, fresh=True)
        new_hosts(cluster)
        with pytest.raises(WireError, match="is under way"):
            leader.welcome(cluster.a.greeting())
        cluster.clock.advance_to(100.0 + POLICY.takeover_patience)
        await cluster.train()
        assert leader.coordinator is not None and leader.coordinator.machine.generation == 1
        assert any("is abandoned" in text for text in cluster.said)
        with pytest.raises(WireError, match="was given up") as refused:
            leader.welcome(old)
        assert refused.value.kind == "other run"

    play(scene)


def test_a_host_of_a_run_that_the_store_has_lost_is_not_touched() -> None:
    async def scene(cluster: Cluster) -> None:
        leader = await cluster.lead()
        with pytest.raises(WireError, match="the store knows nothing") as refused:
            leader.welcome(Host("a", run="20260101-000000-abcd", term=1).greeting())
        assert refused.value.kind == "unknown run" and leader.coordinator is None

    play(scene)


def test_an_operator_may_give_up_a_run_that_is_under_way() -> None:
    async def scene(cluster: Cluster) -> None:
        await cluster.lead()
        await cluster.train()
        old = cluster.a.greeting()
        leader = await next_coordinator(cluster, fresh=True, new_run=True)
        with pytest.raises(RunOver, match="--new-run"):
            leader.welcome(old)
        new_hosts(cluster)
        await cluster.train()
        assert leader.run != old.run

    play(scene)


def test_facts_that_cannot_be_read_are_a_sentence() -> None:
    async def scene(cluster: Cluster) -> None:
        shelf = cluster.keeper._shelf  # type: ignore[attr-defined]  # the memory keeper's own
        shelf.facts = b"written by who knows whom"
        with pytest.raises(SettingsError, match=r"job train.*cannot be read.*--new-run"):
            await runs.look_back(cluster.keeper, "train", new_run=False)
        past = await runs.look_back(cluster.keeper, "train", new_run=True)
        assert past == Past(damaged=True)
        leader = await cluster.lead(past=past)
        await cluster.train()
        assert leader.coordinator is not None and leader.run

    play(scene)


def test_what_was_recovered_is_known_to_the_next_leader() -> None:
    async def scene(cluster: Cluster) -> None:
        await cluster.lead()
        await cluster.train()
        await cluster.recover_rank_1()
        (record,) = cluster.journal.recoveries
        cluster.clock.advance_to(cluster.clock.now() + 50.0)
        leader = await next_coordinator(cluster, fresh=True)
        assert leader.historian.history.recoveries == 1
        (told,) = leader.historian.recall()
        assert (told.step, told.swaps, told.phases) == (record.step, record.swaps, record.phases)
        assert told.at - told.opened_at == pytest.approx(record.at - record.opened_at)

    play(scene)


def test_a_second_agent_of_the_same_name_is_told_so_and_the_first_one_stays() -> None:
    async def scene(cluster: Cluster) -> None:
        leader = await cluster.lead()
        await cluster.train()
        twin = Host("a", agent="of a cloned image")
        with pytest.raises(WireError, match=r"another agent is connected as host a.*--host-name") as refused:
            leader.welcome(twin.greeting(), "ipv4:10.0.0.9:4000")
        assert refused.value.kind == "name taken"
        assert cluster.a.line is not None and not cluster.a.line.closed
        again = leader.welcome(cluster.a.greeting())
        assert not again.closed and cluster.a.line.closed, "its own agent, whose former line may be dead"
        leader.gone(again, "the connection ended")
        assert not leader.welcome(twin.greeting()).closed, "an agent that was started again after the other had gone"

    play(scene)


@pytest.mark.parametrize(
    "greeting",
    [Host("c", ranks=5), Host("c", ranks=0, spares=100_000)],
    ids=["more ranks than a host has", "more spares than there can be"],
)
def test_a_host_offers_what_fits_the_world(greeting: Host) -> None:
    async def scene(cluster: Cluster) -> None:
        leader = await cluster.lead()
        with pytest.raises(WireError) as refused:
            leader.welcome(greeting.greeting())
        assert refused.value.kind == "settings"

    play(scene)
