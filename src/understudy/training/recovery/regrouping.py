"""Every process group of this rank is formed again, and everything that depends on which ranks are there is settled."""

import functools

from understudy.groups.engines import Engines
from understudy.groups.fence import Fences
from understudy.groups.world import World
from understudy.protocol.commands import ResumeAt
from understudy.training.degraded.mode import DegradedMode
from understudy.training.late_fence import LateFence
from understudy.training.replicas import Replicas
from understudy.training.running_ahead import RunsAhead
from understudy.training.snapshots.peer_memory import PeerMemory
from understudy.training.status import MemberStatus


class Regrouping:
    """Of one member. All ranks call the same things in the same order."""

    def __init__(
        self,
        *,
        status: MemberStatus,
        world: World,
        engines: Engines,
        fences: Fences,
        degraded: DegradedMode,
        replicas: Replicas,
        late_fence: LateFence,
        ahead: RunsAhead,
        peer_memory: PeerMemory,
    ) -> None:
        self._status, self._world, self._engines, self._fences = status, world, engines, fences
        self._degraded, self._replicas, self._late_fence = degraded, replicas, late_fence
        self._ahead, self._peer_memory = ahead, peer_memory

    def drop_connections(self) -> None:
        """At a boundary: no rank uses them any more; gloo takes longer to end whole ones."""
        self._world.connections.break_all()

    def run(self, plan: ResumeAt) -> None:
        self._status.phase("regroup")
        self._world.store.move(plan.store_address)
        self._world.regroup(self._status.generation, plan.absent)
        self._make_engines_equal(plan)
        self._fences.absent = plan.absent
        self._degraded.go_without(plan.absent)  # ranks that may be absent have a share each, by the same number
        self._replicas.show()
        self._replicas.learn_twins()
        self._late_fence.agree()
        self._ahead.agree()
        self._peer_memory.connect()

    def _make_engines_equal(self, plan: ResumeAt) -> None:
        """Like those of ranks that hold the state with which all go on, and have trained up to it."""
        trained = self._status.trained and not plan.receives(self._world.rank)
        self._engines.reset(functools.partial(self._world.show_to_group, self._status.generation), trained)

    def forget_former(self) -> None:
        """All ranks have resumed."""
        self._world.forget_former()
