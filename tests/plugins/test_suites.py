"""Our own plugins keep their contracts, and the suites find those that do not. (Detectors: tests/detection.)"""

import asyncio
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import BaseModel
from torch._C._distributed_c10d import Store

from understudy.agent.responses import Asked, Move, Note, Response
from understudy.api.alerts import Alert
from understudy.api.webhook_formats import Alertmanager, Generic, WebhookFormat
from understudy.coordinator.folder import FolderStores
from understudy.coordinator.state_store import MemoryStateStore, SharedMemoryState, StateStore
from understudy.coordinator.stores import EtcdStores, MemoryStores, StoreProvider, StoreRequest
from understudy.detection.contract import Evidence
from understudy.devices.cpu import Cpu
from understudy.foundation.ids import HostId, Rank
from understudy.groups.families.contract import CommunicatorFamily, Links
from understudy.groups.families.gloo import Gloo
from understudy.plugins.scheduler import Notice, Placement, Scheduler
from understudy.protocol.requests import MoveRanks, ReplaceRank
from understudy_testkit.conformance import communicators, devices, responses, schedulers, stores, webhooks
from understudy_testkit.conformance.rule import NotConforming
from understudy_testkit.faults import etcd_servers

ALERTMANAGER = {
    "version": "4",
    "alerts": [
        {"status": "firing", "labels": {"alertname": "Xid", "node": "n1"}, "startsAt": "2026-11-18T06:00:00Z"},
        {"status": "resolved", "labels": {}, "annotations": {"summary": "fine again"}, "startsAt": "yesterday"},
    ],
}
GENERIC = {"source": "mine", "status": "firing", "labels": {"alertname": "Xid"}, "reason": "it says so"}


# -- ours -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [Note, Move])
def test_our_responses_conform(make: Callable[[], Response]) -> None:
    responses.check(make)


@pytest.mark.parametrize(("make", "post"), [(Alertmanager, ALERTMANAGER), (Generic, GENERIC)])
def test_our_webhook_formats_conform(make: Callable[[], WebhookFormat], post: Mapping[str, Any]) -> None:
    webhooks.check(make, post)


def test_the_memory_store_conforms() -> None:
    stores.check(MemoryStores, "memory")


def test_the_folder_store_conforms(tmp_path: Path) -> None:
    stores.check(FolderStores, f"folder://{tmp_path}")


@pytest.mark.skipif(etcd_servers.why_not() is not None, reason=str(etcd_servers.why_not()))
def test_the_etcd_store_conforms(tmp_path_factory: pytest.TempPathFactory) -> None:
    with etcd_servers.running(tmp_path_factory.mktemp("etcd")) as servers:
        stores.check(EtcdStores, servers.address)


@pytest.mark.parametrize("rule", communicators.RULES, ids=lambda rule: rule.name)
def test_gloo_conforms(rule: Any) -> None:
    rule.check(Gloo)


@pytest.mark.parametrize("rule", devices.RULES, ids=lambda rule: rule.name)
def test_the_cpu_conforms(rule: Any) -> None:
    rule.check(Cpu)


# -- those that do not ------------------------------------------------------------------------------------------------


class Greedy:
    def respond(self, evidence: Evidence) -> Asked | None:
        return MoveRanks(at=evidence.at, reason="all", ranks=(Rank(0), Rank(1)))


class Hasty:
    def respond(self, evidence: Evidence) -> Asked | None:
        assert evidence.rank is not None
        return ReplaceRank(at=evidence.at, reason="now", rank=evidence.rank)


class MovesNotes(Move):
    def respond(self, evidence: Evidence) -> Asked | None:
        assert evidence.rank is not None
        return MoveRanks(at=evidence.at, reason=evidence.text, ranks=(evidence.rank,))


@pytest.mark.parametrize(
    ("make", "complaint"),
    [(Greedy, "about another rank"), (Hasty, "name it"), (MovesNotes, "only a person should know")],
)
def test_a_response_that_breaks_its_contract_is_found(make: Callable[[], Response], complaint: str) -> None:
    with pytest.raises(NotConforming, match=complaint):
        responses.check(make)


class Post(BaseModel):
    number: int = 0


class WebhookStub:
    """Says what the post says."""

    post: type[BaseModel] = Post

    def alerts(self, post: Any, _now: float) -> list[Alert]:
        return [Alert(source="s", name="n", labels={}, firing=True, started=None, key=str(post.number))]


class Undescribed(WebhookStub):
    post = int  # type: ignore[assignment]


class WithoutKey(WebhookStub):
    def alerts(self, _post: Any, _now: float) -> list[Alert]:
        return [Alert(source="s", name="n", labels={}, firing=True, started=None, key="")]


class Raises(WebhookStub):
    def alerts(self, post: Any, _now: float) -> list[Alert]:
        raise ValueError(post)


@pytest.mark.parametrize(
    ("make", "complaint"),
    [(Undescribed, "no model"), (WithoutKey, "without a key"), (Raises, "it raised ValueError")],
)
def test_a_webhook_format_that_breaks_its_contract_is_found(make: Callable[[], WebhookFormat], complaint: str) -> None:
    with pytest.raises(NotConforming, match=complaint):
        webhooks.check(make, {"number": 3})


def test_a_format_that_does_not_take_its_own_post_is_found() -> None:
    webhooks.check(WebhookStub, {"number": 3})
    with pytest.raises(NotConforming, match="does not take its own post"):
        webhooks.check(WebhookStub, {"number": "three"})


class Anarchic(MemoryStores):
    """Each coordinator leads a world of its own."""

    def open(self, request: StoreRequest) -> StateStore:  # noqa: ARG002
        return MemoryStateStore(SharedMemoryState())


class OneForAll(MemoryStores):
    """Jobs are not told apart."""

    def open(self, request: StoreRequest) -> StateStore:
        return super().open(StoreRequest(address=request.address, job="job"))


class Forgiving(MemoryStateStore):
    async def record(self, facts: bytes) -> None:
        self._shared.facts = facts


class Forgives(MemoryStores):
    def open(self, request: StoreRequest) -> StateStore:
        return Forgiving(self._shared.setdefault(request.job, SharedMemoryState()))


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (Anarchic, "another coordinator does not read"),
        (OneForAll, "keeps jobs apart"),
        (Forgives, "a coordinator that never led could record"),
    ],
)
def test_a_store_that_breaks_its_contract_is_found(make: Callable[[], StoreProvider], complaint: str) -> None:
    with pytest.raises(NotConforming, match=complaint):
        stores.check(make, "memory")


class Cluster:
    """Places by two variables of a made-up scheduler."""

    def placement(self, environment: Mapping[str, str]) -> Placement | None:
        try:
            hosts, place = int(environment["MADE_UP_NODES"]), int(environment["MADE_UP_NODE"])
        except (KeyError, ValueError):
            return None
        if not 0 <= place < hosts < 10_000:
            return None
        return Placement(hosts=hosts, ranks_per_host=8, host=HostId(f"node{place}"), place=place)

    async def notices(self) -> tuple[Notice, ...]:
        return (Notice(host=HostId("node1"), reason="drain", seconds=30.0),)


class ClaimsAll(Cluster):
    def placement(self, environment: Mapping[str, str]) -> Placement | None:
        return super().placement({"MADE_UP_NODES": "1", "MADE_UP_NODE": "0", **environment})


class Trusting(Cluster):
    def placement(self, environment: Mapping[str, str]) -> Placement | None:
        if "MADE_UP_NODES" not in environment:
            return None
        hosts, place = int(environment["MADE_UP_NODES"]), int(environment.get("MADE_UP_NODE", 0))
        return Placement(hosts=hosts, ranks_per_host=8, host=HostId(f"node{place}"), place=place)


def test_an_adapter_of_a_scheduler_can_be_checked() -> None:
    placed = {"MADE_UP_NODES": "4", "MADE_UP_NODE": "3"}
    schedulers.check(Cluster, placed)
    assert [notice.host for notice in asyncio.run(Cluster().notices())] == ["node1"]
    with pytest.raises(NotConforming, match="claims a process"):
        schedulers.check(ClaimsAll, placed)
    with pytest.raises(NotConforming, match="it raised ValueError"):
        schedulers.check(Trusting, placed)
    assert isinstance(Cluster(), Scheduler)


class Unbreakable(Gloo):
    """Its links are broken by nothing."""

    def links(self, exists: Callable[[str], bool], formed: Callable[[list[int]], None]) -> Links:
        links = super().links(exists, formed)
        links.break_all = lambda: 0  # type: ignore[method-assign]
        return links


class Nameless(Gloo):
    backend = ""


class Elsewhere(Gloo):
    def make(self, store: Store, place: int, ranks: list[int], timeout: timedelta) -> Any:
        raise RuntimeError(f"no device for {store, place, ranks, timeout}")


class Credulous(Gloo):
    def connect(self, *_: Any) -> None:
        return


class Generous(Gloo):
    def connect_within(self, timeout: timedelta, size: int) -> timedelta:
        return timeout * size


class Restless(Cpu):
    def record(self) -> Any:
        return SimpleNamespace(complete=lambda: False)


def test_a_device_that_breaks_its_contract_is_found() -> None:
    with pytest.raises(NotConforming, match=r"comes to rest: after it has drained, an event .* is not complete"):
        devices.check(Restless)


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (Credulous, "gives up a peer that does not come: it connected to a peer that did not"),
        (Generous, "says how it is used: with 0:00:30 for the job it connects within 0:01:00"),
        (Unbreakable, "frees a rank that is blocked.*: nothing was there to be broken"),
        (Nameless, "no name that init_process_group would take"),
        (Elsewhere, "it raised RuntimeError: no device"),
    ],
)
def test_a_family_that_breaks_its_contract_is_found(make: Callable[[], CommunicatorFamily], complaint: str) -> None:
    with pytest.raises(NotConforming, match=complaint):
        communicators.check(make)
