"""All process groups of this process: found a world, keep track of groups that the script makes, re-form them in place.

A joiner begins in a sandbox: its groups have no peers (torch's fake backend), but say that they are of the world's own
backend, so that its script and its engines take the same way as those of the others did. What the rank heard from
others in its setup it hears from the replayer.

A script may make groups on that backend itself, because nothing is ever said in them (torchtitan does for dimensions of
a mesh that are not in use). They stay what they are.

Every group keeps its identity over a regroup: the ProcessGroup object, DDP's reducer, FSDP2, DeviceMesh and groups that
the script holds go on working with new peers behind them.

What is true of one family of communicators only is asked of it (`groups.families`): whether a group that the engine has
made is connected already, and how one is connected and broken.

A world may be formed without some of its ranks. Every group then consists of those of its members that are present, in
the same order; a group with no other rank left is a group of one. torch numbers ranks without gaps, so what torch calls
a rank is then a place among the present ones (`place_of`), while everything of ours goes on speaking of ranks.
"""

import functools
import importlib
import inspect
from collections.abc import Callable, Collection, Iterator, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d
from torch._C._distributed_c10d import HashStore, PrefixStore, Store
from torch.distributed.distributed_c10d import GroupName

from understudy.errors import RegroupError, StepAbandoned
from understudy.foundation.ids import Generation, Rank
from understudy.groups import open_batches
from understudy.groups.alone import StandIns
from understudy.groups.bridges import Bridge, Pair
from understudy.groups.connecting import Backends
from understudy.groups.families.contract import CommunicatorFamily, WarningLinks
from understudy.groups.links import GroupLinks
from understudy.groups.setup_replay import Recorder, Recording, Replayer
from understudy.groups.store import InterruptibleStore
from understudy.groups.words import DefaultGroupWords, OwnWords, Words

_ARGUMENTS = tuple(inspect.signature(c10d._new_process_group_helper).parameters)
_BACKEND, _NAME = "backend", "group_name"
_SILENT = "fake"  # torch's name for a backend without peers
PAIRS = "pairs"  # what their connections are called, all together
_WORDS = "understudy-words"


class World:
    """The groups of one member. `family` makes their backends; `store` is shared by all members; `abandoned` interrupts
    every wait; `formed` is told of the connections of each group."""

    def __init__(
        self,
        *,
        family: CommunicatorFamily,
        rank: Rank,
        size: int,
        founded_in: Generation,
        store: InterruptibleStore,
        abandoned: Callable[[], bool],
        timeout: timedelta,
        device: torch.device,
        formed: Callable[[Generation, list[int]], None] = lambda _, __: None,
    ) -> None:
        self.rank, self.size, self.device, self.timeout = rank, size, device, timeout
        self._family, self.store = family, store
        self._founded_in = self._generation = founded_in
        self._links = links = GroupLinks(
            family,
            exists=lambda name: name == _WORDS or name in c10d._world.pg_names.values(),
            formed=lambda connections: formed(self._generation, connections),
        )
        self.connections, self.break_at_once = links.all, links.break_at_once
        self.own_words = None if family.carries_words else OwnWords()
        self.words: Words = self.own_words or DefaultGroupWords(device)
        store.overheard = self.connections.hear
        self._abandoned = abandoned
        self._recorder: Recorder | None = None
        self.on_collective: Callable[[], None] = lambda: None  # told of each one until the world is established
        self._replayer = Replayer({})
        self._stand_ins = StandIns()
        self._present = list(range(size))
        self._all_members: dict[str, list[int]] = {}  # by group: its members, whether they are present or not
        self._shown: dict[Generation, list[str]] = {}  # keys of ours in the store
        self._without_peers: set[str] = set()  # groups that were made in the sandbox and have no real backend yet
        self._silent: set[str] = set()  # groups that the script wants without peers
        self._backends = Backends(device, family, self._make_backend)

    def warn_before_abort(self, hook: Callable[[], None]) -> bool:
        """`hook` is called before any of the script's groups is aborted, in any thread. Asked before the first one is
        made. False: its family cannot."""
        if not isinstance(self._links.of_groups, WarningLinks):
            return False
        self._links.of_groups.warn(hook)
        return True

    # -- beginning ----------------------------------------------------------------------------------------------------

    def found(self) -> None:
        """A new world: all members form the default group together."""
        self._recorder = Recorder(self.on_collective)
        self._make_groups_by(self._make_and_remember)
        dist.init_process_group(
            self._family.backend, rank=self.rank, world_size=self.size, store=self._root_store(), timeout=self.timeout
        )
        self._form_words(self._founded_in, self._present, fresh=False)

    def enter_sandbox(self, recording: Recording) -> None:
        """A joiner's world without peers, for its setup and its rehearsal. `recording`: what the rank was told in its
        own setup."""
        importlib.import_module("torch.testing._internal.distributed.fake_pg")  # makes the backend known
        self._replayer = Replayer(recording)
        self._make_groups_by(self._make_without_peers)
        dist.init_process_group(self._family.backend, rank=self.rank, world_size=self.size, store=HashStore())

    def finish_recording(self) -> Recording:
        """The world is established: what was heard so far is what a joiner will be told."""
        recorder, self._recorder = self._recorder, None
        return recorder.finish() if recorder is not None else {}

    def _root_store(self) -> Store:
        return PrefixStore(f"world-{self._founded_in}", self.store)

    def _make_groups_by(self, way: Callable[..., Any]) -> None:
        """Every group that is made from now on, by us or by the script, is made in this `way`."""
        make = getattr(c10d._new_process_group_helper, "__wrapped__", c10d._new_process_group_helper)
        c10d._new_process_group_helper = functools.wraps(make)(functools.partial(self._make, way, make))

    def _make(self, way: Callable[..., Any], make: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if _argument(_BACKEND, args, kwargs) != _SILENT:
            return way(make, *args, **kwargs)
        self._silent.add(_argument(_NAME, args, kwargs))
        return make(*args, **kwargs)

    def _make_and_remember(self, make: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Its connections are ours to break."""
        name, backend = _argument(_NAME, args, kwargs), _argument(_BACKEND, args, kwargs)
        if self._family.arguments:
            args, kwargs = (), {**dict(zip(_ARGUMENTS, args, strict=False)), **kwargs, **self._family.arguments}
        with self._links.of_groups.forming(name):
            group, store = make(*args, **kwargs)
            if isinstance(group, dist.ProcessGroup) and backend == self._family.backend:
                self._begin(GroupName(name), group, _numbers(args, kwargs))
        if self._recorder is not None and isinstance(group, dist.ProcessGroup):
            self._recorder.attend(name, group)
        return group, store

    def _begin(self, name: GroupName, group: dist.ProcessGroup, numbers: list[int]) -> None:
        """The engine has just made it. `numbers`: what torch calls its ranks; none for the default group."""
        backend = group._get_backend(self.device)
        self._links.of_groups.hold(name, backend)
        if not self._family.connected_when_made:
            ranks = numbers or list(range(group.size()))
            self._connect(self._family, backend, self._generation, name, ranks[group.rank()], ranks)

    def _make_without_peers(self, make: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        name, backend = _argument(_NAME, args, kwargs), _argument(_BACKEND, args, kwargs)
        kwargs = {**dict(zip(_ARGUMENTS, args, strict=False)), **kwargs, "backend": _SILENT, "backend_options": None}
        group, store = make(**kwargs)
        if isinstance(group, dist.ProcessGroup):
            c10d._world.pg_map[group] = (backend, store)
            self._without_peers.add(name)
            self._replayer.attend(name, group)
        return group, store

    # -- groups -------------------------------------------------------------------------------------------------------

    def groups(self) -> list[tuple[GroupName, dist.ProcessGroup]]:
        """Every group of this process in one order that is the same on all ranks, so that no two ranks wait
        crosswise."""
        return sorted(((name, group) for group, name in c10d._world.pg_names.items()), key=lambda item: item[0])

    def members(self, group: dist.ProcessGroup) -> list[int]:
        """All ranks that belong to a group, in its order, whether they are present or not."""
        name = c10d._world.pg_names[group]
        if name not in self._all_members:
            numbers = c10d._world.pg_group_ranks[group]
            places = sorted(numbers, key=lambda number: numbers[number])
            self._all_members[name] = [self._present[place] for place in places]
        return self._all_members[name]

    @property
    def present(self) -> list[int]:
        """The ranks of the world as it was last formed."""
        return self._present

    def place_of(self, rank: int) -> int:
        """What torch calls this rank in the default group."""
        return rank if len(self._present) == self.size else self._present.index(rank)

    # -- regroup ------------------------------------------------------------------------------------------------------

    def regroup(self, generation: Generation, absent: Collection[int] = ()) -> None:
        """Form every group again for `generation`, with the present holder of each rank, and without those of
        `absent`."""
        self._generation = generation
        self._stand_ins.end()
        try:
            talking = [(name, group) for name, group in self.groups() if name not in self._silent]
            self._form_words(generation, [rank for rank in range(self.size) if rank not in absent], fresh=True)
            for place, (name, group) in enumerate(talking):
                with self._links.of_groups.forming(name, fresh=place == 0, keep=self._bridge_name):
                    self._regroup_one(generation, name, group, absent)
            self._number_without_gaps([rank for rank in range(self.size) if rank not in absent])
        except StepAbandoned:
            raise
        except RuntimeError as error:
            raise RegroupError(f"the groups of generation {generation} could not be formed: {error}") from error
        self._make_groups_by(self._make_and_remember)

    def _regroup_one(
        self, generation: Generation, name: GroupName, group: dist.ProcessGroup, absent: Collection[int]
    ) -> None:
        if self._abandoned():
            raise StepAbandoned(f"generation {generation} was abandoned during its regroup")
        open_batches.close(group, self.device)
        self.make_real(name, group)
        present = [rank for rank in self.members(group) if rank not in absent]
        backend = self._backends.free(name, group)
        self._links.of_groups.hold(name, backend)
        self._connect(self._family, backend, generation, name, self.rank, present)
        group._set_group_name(name)  # functional collectives find a group by its name

    def _number_without_gaps(self, present: list[int]) -> None:
        """Make torch's tables say what its groups are now. (Its default group numbers its ranks by itself.)"""
        if present == self._present:
            return
        groups = [(group, self.members(group)) for _, group in self.groups()]
        self._present = present
        places = {rank: place for place, rank in enumerate(present)}
        for group, ranks in groups:
            numbers = [places[rank] for rank in ranks if rank in places]
            c10d._world.pg_group_ranks[group] = {number: place for place, number in enumerate(numbers)}

    def _form_words(self, generation: Generation, present: list[int], *, fresh: bool) -> None:
        """Our own group, if there is one: another one in each generation, so that none is ever stuck."""
        if self.own_words is None:
            return
        self.own_words.forget()
        with self._links.of_ours.forming(_WORDS, fresh=fresh, keep=self._bridge_name):
            store = PrefixStore(f"{_WORDS}/{generation}", self.store)
            backend = self._links.own_family.make(store, present.index(self.rank), present, self.timeout)
            self._connect(self._links.own_family, backend, generation, _WORDS, self.rank, present)
        self.own_words.use(backend, present)

    def _connect(
        self, family: CommunicatorFamily, backend: Any, generation: Generation, name: str, own: int, ranks: list[int]
    ) -> None:
        """Show our handle to the other `ranks`, and connect to all of them by theirs."""
        prefix = f"handles/{generation}/{name}"
        self._show(generation, f"{prefix}/{own}", backend.get_reconfigure_handle())
        handles = self.store.multi_get([f"{prefix}/{member}" for member in ranks])
        self._reconfigure(family, backend, generation, [handle.decode() for handle in handles])

    # -- handing over -------------------------------------------------------------------------------------------------

    @property
    def _bridge_name(self) -> str:
        return f"bridge-{self.rank}"

    def bridge(self, generation: Generation, leaver: bool) -> "Bridge":
        """A connection between the one that leaves this rank and the one that has it now. Both call this."""
        name, own = self._bridge_name, 0 if leaver else 1
        store = PrefixStore(f"{name}/{generation}", self.store)
        with self._links.of_ours.forming(name):
            backend = self._links.own_family.make(store, own, [0, 1], self.timeout)
            self._connect(self._links.own_family, backend, generation, name, own, [0, 1])
        return Bridge(backend, peer=1 - own)

    def show_to_group(self, generation: Generation, group: dist.ProcessGroup, what: str, own: bytes) -> Iterator[bytes]:
        """Show something to the other members of a group; what each that is present shows, the lowest first. A question
        to the store is asked only when its answer is wanted."""
        path = f"{what}/{generation}/{c10d._world.pg_names[group]}"
        self._show(generation, f"{path}/{self.rank}", own)
        present = [rank for rank in self.members(group) if rank in self._present]
        return (self.store.get(f"{path}/{rank}") for rank in present)

    # -- words to other members --------------------------------------------------------------------------------------

    def _show(self, generation: Generation, key: str, value: str | bytes) -> None:
        self.store.set(key, value)
        self._shown.setdefault(generation, []).append(key)

    def forget_former(self) -> None:
        """No rank will ask what was shown in generations before this one."""
        for generation in [each for each in self._shown if each < self._generation]:
            for key in self._shown.pop(generation):
                self.store.delete_key(key)

    # -- copies on other hosts ----------------------------------------------------------------------------------------

    def tell_all(self, generation: Generation, what: str, own: str) -> dict[Rank, str]:
        """What every rank that is present says of itself."""
        path = f"{what}/{generation}"
        self._show(generation, f"{path}/{self.rank}", own)
        told = self.store.multi_get([f"{path}/{rank}" for rank in self._present])
        return {Rank(rank): text.decode() for rank, text in zip(self._present, told, strict=True)}

    def form_pairs(self, generation: Generation, pairs: Sequence[tuple[Rank, Rank]]) -> dict[tuple[Rank, Rank], "Pair"]:
        """A connection for each of these pairs, of which this rank is one; the other one calls this as well. All are
        formed at once: one after the other, each would wait for the next."""
        backends = {}
        with self._links.of_ours.forming(PAIRS):
            for pair in pairs:
                store = PrefixStore(f"{PAIRS}/{pair}/{generation}", self.store)
                backend = self._links.own_family.make(store, pair.index(self.rank), [0, 1], self.timeout)
                key = f"{PAIRS}/{pair}/{generation}/{self.rank}"
                self._show(generation, key, backend.get_reconfigure_handle())
                backends[pair] = backend
            connecting = []
            for pair, backend in backends.items():
                handles = self.store.multi_get([f"{PAIRS}/{pair}/{generation}/{rank}" for rank in pair])
                told = [handle.decode() for handle in handles]
                connecting.append(
                    self._backends.connect(self._links.own_family, backend, generation, told, self.timeout)
                )
            for attempt in connecting:
                attempt.wait(self._abandoned)
        return {pair: Pair(backend, 1 - pair.index(self.rank)) for pair, backend in backends.items()}

    # -- sandbox ------------------------------------------------------------------------------------------------------

    def make_real(self, name: GroupName, group: dist.ProcessGroup) -> None:
        """Put a real backend under a group that was made on the fake one. Happens once per group of a joiner."""
        if name not in self._without_peers:
            return
        self._without_peers.discard(name)
        self._replayer.leave(group)
        backend = self._make_backend(name, group)
        group._register_backend(self.device, self._family.backend_type, backend)
        group._set_default_backend(self._family.backend_type)
        group._set_group_name(name)

    def _make_backend(self, name: GroupName, group: dist.ProcessGroup) -> Any:
        """Without connections, for peers whose backends of that group were made by the engine."""
        ranks = self.members(group)
        store = self._root_store()
        if group is not dist.group.WORLD:
            store = PrefixStore(f"{dist.group.WORLD.group_name}/", store)  # type: ignore[union-attr]
        store = PrefixStore(f"{self.device.type}/", PrefixStore(f"{name}/", store))
        return self._family.make(store, ranks.index(self.rank), ranks, self.timeout)

    def be_alone(self, group: dist.ProcessGroup, unique: int) -> None:
        """Make a group a world of one, so that an engine whose backward needs real collectives can rehearse."""
        name = c10d._world.pg_names[group]
        self.make_real(name, group)
        backend = self._backends.free(name, group)
        self._reconfigure(self._family, backend, unique, [backend.get_reconfigure_handle()])
        group._set_group_name(name)
        members = self.members(group)
        self._stand_ins.begin(group, members.index(self.rank), len(members), self.device)

    def _reconfigure(self, family: CommunicatorFamily, backend: Any, unique: int, handles: list[str]) -> None:
        self._backends.connect(family, backend, unique, handles, self.timeout).wait(self._abandoned)


def _numbers(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[int]:
    place = _ARGUMENTS.index("global_ranks_in_group")
    return list(args[place] if len(args) > place else kwargs["global_ranks_in_group"])


def _argument(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """One argument of torch's function that makes a group."""
    place = _ARGUMENTS.index(name)
    return str(args[place] if len(args) > place else kwargs[name])
