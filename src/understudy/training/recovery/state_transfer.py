"""This member's part in the transfers of a plan: it gives its state to some ranks, or takes its own from others."""

from collections.abc import Callable

from understudy.detection.progress import Place
from understudy.errors import StepAbandoned, TransferError, UnderstudyError
from understudy.foundation.ids import Rank, StepNumber
from understudy.groups.engines import Engines
from understudy.groups.world import World
from understudy.ledger.records import TransferRecord
from understudy.protocol.commands import ResumeAt
from understudy.protocol.positions import Position
from understudy.state.protected_state import Protected
from understudy.state.transfer.device_path import DevicePath
from understudy.state.transfer.p2p import Channel, DefaultGroup
from understudy.state.transfer.receiver import Receiver
from understudy.state.transfer.sender import Sender
from understudy.training.control import ControlLine
from understudy.training.rank_local.buffers import RankLocalBuffers
from understudy.training.replicas import Replicas
from understudy.training.snapshots.peer_replication import PeerReplication
from understudy.training.status import MemberStatus
from understudy.training.step_ledger import StepLedger


class StateTransfer:
    """Of one member. `host`: its name; empty where there is only one."""

    def __init__(
        self,
        *,
        control: ControlLine,
        status: MemberStatus,
        world: World,
        protected: Protected,
        engines: Engines,
        replicas: Replicas,
        rank_local_buffers: RankLocalBuffers,
        replication: PeerReplication,
        ledger: StepLedger,
        host: str,
        at_end: Callable[[], bool] | None = None,
    ) -> None:
        """`at_end`: of a device that runs behind its host; waits until all that is queued has run, and tells whether no
        contact was lost before. What is on such a device goes by groups of the device."""
        self._control, self._status, self._world, self._host = control, status, world, host
        self._protected, self._engines, self._replicas = protected, engines, replicas
        self._rank_local_buffers, self._replication, self._ledger = rank_local_buffers, replication, ledger
        self.channel = Channel(world.own_words or DefaultGroup(world.place_of))
        self._path = None if at_end is None else DevicePath(world.device, DefaultGroup(world.place_of), at_end)
        self._bridge: Channel | None = None  # kept, because what was sent last may still be on its way
        self._bridge_trouble = "it was not asked for"
        self._prepared: tuple[StepNumber, Sender] | None = None

    # -- before the plan is known --------------------------------------------------------------------------------------

    def get_ready(self, position: Position) -> None:
        """This rank has reported, and may have to give or take."""
        if self._control.leaving or self._control.taking:
            self.meet_at_bridge()
        elif position.holds is not None and not position.arrived and self._may_have_to_give():
            self._prepare(position.holds)

    def _may_have_to_give(self) -> bool:
        """Not at a boundary: only leavers give there, and at once; to be ready would take longer than to serve."""
        return self._replicas.is_likely_donor and not self._control.at_boundary

    def meet_at_bridge(self) -> None:
        """A leaver and its successor. If it fails the plan of this generation cannot be carried out."""
        self._bridge, self._status.at_bridge = None, True
        try:
            self._bridge = Channel(self._world.bridge(self._status.generation, leaver=self._control.leaving))
        except (RuntimeError, OSError, UnderstudyError, StepAbandoned) as error:
            self._bridge_trouble = f"{type(error).__name__}: {error}"
        finally:
            self._status.at_bridge = False

    def across_bridge(self) -> Channel:
        if self._bridge is None:
            raise TransferError(f"no connection between leaver and successor: {self._bridge_trouble}")
        return self._bridge

    def _prepare(self, holds: StepNumber) -> None:
        """A joiner rehearses now, and we have nothing to do: take the digests of what we may have to send it."""
        self._engines.forget_iteration()  # a step that was cut short may have left parameters gathered from all shards
        self._prepared = (holds, self._make_sender())
        self._prepared[1].take_digests(self._path)

    def forget_prepared(self) -> None:
        """What was made ready is not the state any more."""
        self._prepared = None

    # -- the plan ------------------------------------------------------------------------------------------------------

    def hand_over(self, step: int) -> None:
        """Another member has this rank now, and takes its state."""
        self._sender_of(step).send_to(self.across_bridge(), self._world.rank)

    def run(self, plan: ResumeAt) -> TransferRecord | None:
        """All transfers of the plan, in its order. Returns what this rank has received, if it has."""
        rank, received = self._world.rank, None
        self.channel.begin()
        for receiver, donors in plan.donors:
            if receiver == rank:
                received = self._take(plan, donors)
            elif rank in donors and receiver in plan.from_copies:
                Sender(self._replication.read(receiver, plan.step)).send_to(self.channel, receiver)
            elif rank in donors:
                self._sender_of(plan.step).send_to(self.channel, receiver, self._path)
        return received

    def _take(self, plan: ResumeAt, donors: tuple[Rank, ...]) -> TransferRecord:
        rank = self._world.rank
        from_copy, from_leaver = rank in plan.from_copies, rank in donors
        receiver = Receiver(
            self.across_bridge() if from_leaver else self.channel,
            rank,
            self._protected,
            donors,
            None if from_copy else frozenset(self._replicas.holdings.values()),
            self._host,
            moved=self._show_that_it_moves,
            path=None if from_leaver or from_copy else self._path,
        )
        is_own = from_leaver or from_copy  # with the buffers that belong to this rank
        if not is_own:
            self._rank_local_buffers.hold()
        received = receiver.run(self._tear)
        if not is_own:
            self._rank_local_buffers.put_back(plan.step)
        self._status.holds = StepNumber(plan.step)
        self._ledger.inherited(self._protected, self._status.generation, plan.step - 1)
        return received

    def _show_that_it_moves(self) -> None:
        """A transfer may take long; as long as something arrives, no rank is called late."""
        self._status.show(Place.RECOVERING)

    def _tear(self) -> None:
        """The first byte is about to land. What this member held before is gone until the last digest is checked."""
        self._status.holds = None

    def _sender_of(self, step: int) -> Sender:
        """What was made ready, if it is the state that the plan asks for."""
        holds, sender = self._prepared or (None, None)
        return sender if sender is not None and holds == step else self._make_sender()

    def _make_sender(self) -> Sender:
        holdings = self._replicas.holdings
        numbers = {path: holdings.get(unit, 0) for path, unit in self._protected.units().items()}
        return Sender(self._protected, numbers, self._host)
