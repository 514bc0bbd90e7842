"""A host that was broken into says everything that can be said: nobody else's rank, state or line is touched."""

import asyncio

import pytest
from tests.coordinator.leader_play import Cluster

from understudy.errors import WireError
from understudy.foundation.ids import Rank
from understudy.protocol.stages import Stage
from understudy.wire import host_messages as wire
from understudy_testkit.faults.insider import Insider

pytestmark = pytest.mark.timeout(120)


@pytest.mark.parametrize("seed", range(6))
def test_others_do_not_notice(seed: int) -> None:
    asyncio.run(_others_do_not_notice(seed, 1000))


async def _others_do_not_notice(seed: int, messages: int) -> None:
    cluster = Cluster()
    leader = await cluster.lead()
    await cluster.train()
    assert leader.coordinator is not None
    machine, left = leader.coordinator.machine, dict(leader.coordinator._bequests)
    for number in range(messages):
        own = tuple(cluster.spare.living)
        insider = Insider(seed * 1_000_000 + number, own=own, others=("m-0", "m-1", "a", "b"), world=2)
        await _say(cluster, insider.message())
        assert (machine.stage, machine.generation) == (Stage.TRAINING, 1), f"message {number} of seed {seed}"
        assert machine.roster.holders == {Rank(0): "m-0", Rank(1): "m-1"} and not machine.ending.left
        assert all(not host.line.closed for host in (cluster.a, cluster.b) if host.line is not None)
    assert leader.coordinator._bequests == left and not leader.over.is_set()
    assert machine.round.state.pace == 0.0 and len(leader.lines._host_of) < 3 * len(machine.roster.members) + 100


async def _say(cluster: Cluster, data: bytes) -> None:
    """As the service does it: a line that says what it may not say is closed, and its agent comes again."""
    line = cluster.spare.line
    assert line is not None
    try:
        cluster.leader.heard(line, wire.decode_from_host(data))
    except WireError as error:
        line.close()
        cluster.leader.gone(line, str(error))
        await cluster.attend(cluster.spare)
    cluster.clock.advance_to(cluster.clock.now() + 0.1)
    cluster.leader._tick()
    await cluster.settle()
