"""Checks that a store keeps what `understudy.coordinator.state_store` promises, against a real one:

    from understudy_testkit.conformance import stores

    def test_my_store_conforms() -> None:
        stores.check(MyStores, "mine://localhost:4711")

Each rule uses a job of its own, so that a store that is in use can be tried. None needs longer than a few leases of the
store. What a store does when its servers fail must be tested elsewhere, and so must the end of a leadership whose
coordinator lives (`understudy` does both for etcd, in tests/coordinator/test_state_stores.py).
"""

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from understudy.coordinator.state_store import StateStore
from understudy.coordinator.stores import StoreProvider, StoreRequest
from understudy.errors import Deposed
from understudy_testkit.conformance.rule import NotConforming, Rule, check_all, require

_LIMIT = 60.0  # seconds for one rule
_SIZES = (3_200_000, 10, 2_000_001)  # bytes; the state of 100,000 ranks has 13 MB before it is packed


def check(make: Callable[[], StoreProvider], address: str) -> None:
    """NotConforming at the first rule that is broken. `address`: as one would give it to `--store`."""
    check_all(rules(address), make)


@dataclass(frozen=True, slots=True)
class Scene:
    """One job in the store, and the coordinators that know of it."""

    provider: StoreProvider
    address: str
    job: str = field(default_factory=lambda: f"conformance-{secrets.token_hex(6)}")
    opened: list[StateStore] = field(default_factory=list)

    def state_store(self, job: str = "") -> StateStore:
        state_store = self.provider.open(StoreRequest(address=self.address, job=job or self.job))
        self.opened.append(state_store)
        return state_store


Story = Callable[[Scene], Awaitable[None]]


def rules(address: str) -> tuple[Rule[StoreProvider], ...]:
    return tuple(Rule(name, _played(story, address)) for name, story in _STORIES)


def _played(story: Story, address: str) -> Callable[[Callable[[], StoreProvider]], None]:
    def rule(make: Callable[[], StoreProvider]) -> None:
        async def whole() -> None:
            scene = Scene(make(), address)
            try:
                async with asyncio.timeout(_LIMIT):
                    await story(scene)
            except TimeoutError:
                raise NotConforming(f"it took longer than {_LIMIT:g} s") from None
            finally:
                for state_store in scene.opened:
                    await state_store.close()

        try:
            asyncio.run(whole())
        except NotConforming:
            raise
        except Exception as error:
            raise NotConforming(f"it raised {type(error).__name__}: {error}") from error

    return rule


async def _refused(state_store: StateStore, state: bytes) -> bool:
    try:
        await state_store.record(state)
    except Deposed:
        return True
    return False


async def _keeps(scene: Scene) -> None:
    first, second = scene.state_store(), scene.state_store()
    require(await first.read() is None and await first.leader() == "", "a job that has just begun is not empty")
    await first.lead("one:1")
    await first.record(b"old")
    await first.record(b"new")
    require(await first.read() == b"new", "a leader does not read what it recorded last")
    require(await second.read() == b"new", "another coordinator does not read what the leader recorded last")
    require(await second.leader() == "one:1", "another coordinator does not learn the name of the leader")


async def _keeps_long_states(scene: Scene) -> None:
    state_store = scene.state_store()
    await state_store.lead("one:1")
    for size in _SIZES:
        state = secrets.token_bytes(size)
        await state_store.record(state)
        require(await state_store.read() == state, f"a state of {size} bytes did not come back as it was")


async def _one_leads(scene: Scene) -> None:
    first, second = scene.state_store(), scene.state_store()
    term = await first.lead("one:1")
    waiting = asyncio.create_task(second.lead("two:2"))
    await first.record(b"of the first")
    require(not waiting.done() and first.leads() and not second.leads(), "two coordinators lead at once")
    await first.close()
    later = await waiting
    require(later > term, f"the term went from {term} to {later}; it must grow with every leadership")
    require(second.leads() and not first.leads(), "after the leader was closed, the next one does not lead alone")
    require(await second.leader() == "two:2", "the name is still that of the former leader")
    require(await second.read() == b"of the first", "what the former leader recorded is gone")


async def _only_a_leader_writes(scene: Scene) -> None:
    first, second = scene.state_store(), scene.state_store()
    await first.lead("one:1")
    await first.record(b"of the leader")
    require(await _refused(second, b"of another"), "a coordinator that never led could record")
    require(not second.leads() and bool(await second.deposed()), "a coordinator that never led is not told so")
    require(await first.read() == b"of the leader", "what a coordinator without the lead wanted to record was kept")


async def _the_deposed_are_refused(scene: Scene) -> None:
    first, second = scene.state_store(), scene.state_store()
    await first.lead("one:1")
    await first.close()
    await second.lead("two:2")
    await second.record(b"of the second")
    require(await _refused(first, b"too late"), "a coordinator could record after its term")
    require(await second.read() == b"of the second", "what was recorded after its term took the place of newer state")


async def _jobs_are_apart(scene: Scene) -> None:
    one, other = scene.state_store(), scene.state_store(f"{scene.job}-other")
    await one.lead("one:1")
    await one.record(b"of one job")
    require(await other.leader() == "" and await other.read() is None, "a job sees the leader or the state of another")
    await other.lead("two:2")
    require(one.leads() and other.leads(), "two jobs cannot be led at once")


_STORIES: tuple[tuple[str, Story], ...] = (
    ("keeps what a leader records, for all coordinators", _keeps),
    ("keeps long states", _keeps_long_states),
    ("lets one coordinator lead, and the next one follow in a later term", _one_leads),
    ("refuses a coordinator that never led", _only_a_leader_writes),
    ("refuses a coordinator after its term", _the_deposed_are_refused),
    ("keeps jobs apart", _jobs_are_apart),
)
