"""Which ranks hold the same bytes as this one: learnt in a world's first steps, and told anew in each generation.

A world is established when every rank has shown its twin key. Then a rank that is lost can be replaced: it has left a
setup record, and other ranks know what they have in common with it.
"""

from collections import Counter
from collections.abc import Callable

from understudy.errors import TransferError, UnfitError
from understudy.groups.setup_replay import Recording
from understudy.groups.world import World
from understudy.protocol.events import UNTIMED, MemberEstablished
from understudy.state.protected_state import Protected
from understudy.state.rank_local_buffers import (
    Shown,
    differing,
    digests_of,
    shared_buffers,
    some_differ,
    statistics_of,
)
from understudy.training.control import ControlLine
from understudy.training.degraded.mode import DegradedMode
from understudy.training.learning import PATIENCE, Learning, told_apart
from understudy.training.rank_local.buffers import RankLocalBuffers, named
from understudy.training.rank_local.state import RankLocalState
from understudy.training.setup_record import SetupOutcome, SetupRecord, SetupRecordFile, difference, outcome_of
from understudy.training.snapshots.peer_memory import PeerMemory
from understudy.training.status import MemberStatus
from understudy.training.step_ledger import StepLedger
from understudy.wire import messages

_LIKELY_DONORS = 2
"""The lowest living twin gives; so the two lowest get ready, and all others leave the processor to the joiner."""


class Replicas:
    """Of one member. `fenced`: ranks wait for each other at the fence; None until the twins are known. `keep_own`:
    ranks have something that no twin has (random streams, a loader's position, buffers), kept for a replacement.
    `asynchronous`: the device runs behind its host, so that ranks must wait for each other in any case."""

    def __init__(
        self,
        *,
        control: ControlLine,
        status: MemberStatus,
        world: World,
        protected: Protected,
        record: SetupRecordFile,
        rank_local: RankLocalState,
        rank_local_buffers: RankLocalBuffers,
        ledger: StepLedger,
        peer_memory: PeerMemory,
        degraded: DegradedMode,
        many_hosts: bool,
        asynchronous: bool = False,
    ) -> None:
        self._control, self._status, self._world, self._protected = control, status, world, protected
        self._record, self._ledger = record, ledger
        self._rank_local, self._rank_local_buffers = rank_local, rank_local_buffers
        self._peer_memory, self._degraded, self._many_hosts = peer_memory, degraded, many_hosts
        self._asynchronous = asynchronous
        self._note: Callable[[str], None] = control.note
        self._learning = Learning(protected)
        self._shown: Shown | None = None  # to all ranks, once the world is established
        self._predecessor: SetupOutcome | None = None  # of a joiner that has not resumed yet
        self._some_rank_is_alone = False
        self.holdings: dict[str, int] = {}
        self.fenced: bool | None = None
        self.keep_own = False
        self.in_windows = False  # the loop is not ours: what it carries is kept too
        self.some_rank_has_a_twin = self.all_are_twins = False
        self.is_likely_donor = False

    @property
    def twin_key(self) -> str | None:
        return None if self._shown is None else self._shown.twin_key

    def holdings_to_tell(self) -> tuple[int, ...]:
        return tuple(self.holdings.values()) if self._some_rank_is_alone else ()

    # -- the first steps ----------------------------------------------------------------------------------------------

    def watch(self) -> None:
        """A step begins."""
        if not self._status.established:
            self._learning.watch()

    def all_have_learnt(self) -> bool:
        """Asked after each step of a world that is not established, by all ranks, which get the same answer."""
        if self._shown is not None:
            return True  # all had, in an attempt that was cut short
        learnt, step = self._learning.look(), self._learning.steps
        if step >= PATIENCE:
            return True
        self._world.store.set(self._vote_path(step, self._world.rank), "1" if learnt else "0")
        votes = self._world.store.multi_get([self._vote_path(step, rank) for rank in self._world.present])
        return all(vote == b"1" for vote in votes)

    def establish(self) -> None:
        """The end of the step in which the engines have settled, a world's first one mostly: learn the twins.

        A rank that has shown its key has settled; a rank that has seen all keys knows that all have. So if no rank has
        seen them all, none has committed that step, and the world can start over.
        """
        if self._shown is None:
            self._shown = self._learn_own()
            self._leave_record(self._shown)
            self._peer_memory.save_first(1 + (self._status.holds or 0))
        self.show()
        self.learn_twins()
        self._tell_of_rank_local_buffers()
        self._status.established = True  # not earlier: a rank that has shown no key left nothing for a replacement
        if self._many_hosts or self._record.trouble:
            self._control.send(messages.BequestTold(content=self._record.read().for_elsewhere().encode()))
        self._control.send(
            MemberEstablished(
                at=UNTIMED,
                member=self._control.member,
                generation=self._status.generation,
                twin_key=self._shown.twin_key,
                holdings=tuple(self.holdings.values()),
                replica=self._degraded.replica(self._world.rank, self._world.size),
                began_at=self._status.began_at,
            )
        )

    def _learn_own(self) -> Shown:
        learning = self._learning
        learning.end()
        replicated = self._protected.replicated_units()
        self.holdings = told_apart(learning.held, learning.trained, replicated, self._world.rank)
        return Shown(
            twin_key=self._protected.twin_key(self.holdings),
            statistics=bool(statistics_of(self._protected)),
            buffers=digests_of(shared_buffers(self._protected), self._protected.digests),
            unproven=not learning.trained,
        )

    def _leave_record(self, shown: Shown) -> None:
        recording = self._world.finish_recording()
        outcome = outcome_of(self._protected, self._status.total)
        self._record.write(SetupRecord(recording=recording, holdings=self.holdings, shown=shown, outcome=outcome))
        if self._record.trouble is not None:
            self._note(
                f"what rank {self._world.rank} was told in its setup could not be left in shared memory for a "
                f"replacement: {self._record.trouble}. Only the short messages are, with the coordinator"
            )

    def _tell_of_rank_local_buffers(self) -> None:
        """Once for all ranks: those without a twin have none to differ from."""
        if self._ledger.rank_local and self._world.rank == 0 and self.some_rank_has_a_twin:
            self._note(
                f"buffers that replicas do not share, such as batch-norm statistics: {named(self._ledger.rank_local)}. "
                "They are kept with their rank on its host; a replacement on another host goes on with a twin's"
            )

    # -- a joiner -----------------------------------------------------------------------------------------------------

    def inherit(self) -> Recording:
        """A joiner has the twins of its predecessor. Returns what that was told in its setup."""
        assert self._control.assignment is not None
        record = self._record.read()
        if record.shown is None:  # the rank was on another host
            record = SetupRecord.decode(self._control.assignment.bequest)
        if record.shown is None:
            raise TransferError(f"rank {self._world.rank} left nothing behind for its replacement")
        self._shown, self.holdings = record.shown, record.holdings
        self._predecessor = record.outcome
        return record.recording

    def compare_with_predecessor(self) -> None:
        """UnfitError if the setup of this joiner has made something else."""
        if self._predecessor is not None:
            differs = difference(self._predecessor, outcome_of(self._protected, self._status.total))
            if differs is not None:
                raise UnfitError(f"the replacement's script does not do what rank {self._world.rank}'s did: {differs}")
            self._predecessor = None

    # -- every generation ---------------------------------------------------------------------------------------------

    def show(self) -> None:
        """The store may be a new one."""
        assert self._shown is not None
        self._world.store.set(self._path(self._world.rank), self._shown.encode())

    def learn_twins(self) -> None:
        """Where all ranks are twins no fence is needed: a laggard copies the newer state. But where a device runs
        behind its host, no rank knows by itself that its own state is right (`groups.device_fence`)."""
        if self.fenced is not None:
            return
        ranks = self._world.present
        told = [Shown.decode(one) for one in self._world.store.multi_get([self._path(rank) for rank in ranks])]
        keys = [one.twin_key for one in told]
        own_buffers = some_differ(told)  # like rank-local state: no rank could be told later what they should have been
        unproven = any(one.unproven for one in told)
        self.keep_own = own_buffers or self._rank_local.exists or self.in_windows
        self.fenced = len(set(keys)) > 1 or unproven or self.keep_own or self._asynchronous
        self._ledger.rank_local = differing(self._protected, self._world.rank, dict(zip(ranks, told, strict=True)))
        self._rank_local_buffers.use(self._ledger.rank_local)
        self._some_rank_is_alone = any(count == 1 for count in Counter(keys).values())
        self.some_rank_has_a_twin = len(set(keys)) < len(keys)
        self.all_are_twins = len(set(keys)) == 1 < len(keys) and not unproven and not self.keep_own
        if not self._some_rank_is_alone:
            self._peer_memory.stop()
        place = ranks.index(self._world.rank)
        lower_twins = keys[:place].count(keys[place])
        self.is_likely_donor = lower_twins < _LIKELY_DONORS

    def _vote_path(self, step: int, rank: int) -> str:
        return f"learnt/{self._status.founded_in}/{step}/{rank}"

    def _path(self, rank: int) -> str:
        return f"twins/{self._status.founded_in}/{rank}"
