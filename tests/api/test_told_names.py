"""Labels that only the hosts themselves explain: whose word counts, and what comes of two that claim the same."""

import asyncio
import json
import urllib.request
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest
from tests.api.stage import MONITOR, NOON, Client, Stage, tokens
from tests.api.test_alerts import A, B, C, a_job
from tests.coordinator.leader_play import Cluster
from tests.ledger.made_up import WrittenAtOnce

from understudy.agent import inventory
from understudy.api.app import Settings, make_api
from understudy.api.audit import Audit
from understudy.api.event_stream import EventStream
from understudy.api.job import ManyHosts
from understudy.api.registry import HostEntry, HostTarget, Nothing, RankTarget, Registry
from understudy.api.rules import Rule, RuleAction, Rules
from understudy.api.setup import ApiRequest
from understudy.cli import run
from understudy.coordinator.service import Service
from understudy.files.background import BackgroundFiles
from understudy.foundation.ids import HostId
from understudy.ledger.writing import RecordLog
from understudy.wire.inventory import Device, HostInventory

pytestmark = pytest.mark.timeout(180)
RULES = Rules(rules=(Rule(alert="Xid", action=RuleAction.ABORT),))
PAGE = "/v1/webhooks/generic"
TOLD = {
    A: HostInventory(
        host_name="node-a",
        addresses=("10.0.0.1", "fd00::1", "172.17.0.1"),
        pod="trainer-0",
        devices=(
            Device(slot=0, uuid="GPU-00", pci_bus_id="0000:17:00.0"),
            Device(slot=1, uuid="GPU-01", pci_bus_id="0000:65:00.0"),
        ),
    ),
    B: HostInventory(
        host_name="node-b", addresses=("10.0.0.2", "172.17.0.1"), devices=(Device(slot=0, uuid="GPU-10"),)
    ),
}


def target(
    labels: dict[str, str], *, told: dict[HostId, HostInventory] = TOLD, table: dict[HostId, HostEntry] | None = None
) -> RankTarget | HostTarget | Nothing:
    machine = a_job()
    return Registry(table or {}, lambda: told).target(labels, machine.roster, list(machine.hosts.by_id))


def rank(labels: dict[str, str], **changes: Any) -> int:
    found = target(labels, **changes)
    assert isinstance(found, RankTarget), found
    return found.rank


def host(labels: dict[str, str], **changes: Any) -> str:
    found = target(labels, **changes)
    assert isinstance(found, HostTarget), found
    return found.host


def why_not(labels: dict[str, str], **changes: Any) -> str:
    found = target(labels, **changes)
    assert isinstance(found, Nothing), found
    return found.why


def test_what_hosts_tell_is_enough() -> None:
    assert rank({"UUID": "GPU-01"}) == 1 and rank({"UUID": "GPU-10", "Hostname": "node-b"}) == 2
    assert rank({"node": "node-a", "pci_bus_id": "00000000:65:00.0"}) == 1  # the exporter's way to write 0000:65:00.0
    assert rank({"instance": "10.0.0.2:9400", "gpu": "0"}) == 2
    assert host({"instance": "[fd00::1]:9400"}) == host({"pod": "trainer-0"}) == "a"
    assert "contradict" in why_not({"UUID": "GPU-01", "Hostname": "node-b"})
    assert "pci_bus_id" in why_not({"node": "node-a", "pci_bus_id": "00000001:65:00.0"})


def test_the_operator_replaces_field_by_field() -> None:
    table = {A: HostEntry(name=A, aliases=("gpu-node-1",))}
    assert host({"node": "gpu-node-1"}, table=table) == "a" and rank({"UUID": "GPU-01"}, table=table) == 1
    assert "node=node-a" in why_not({"node": "node-a"}, table=table)
    table = {A: HostEntry(name=A, pods=("other",), devices=(Device(slot=0, uuid="GPU-01"),))}
    assert rank({"UUID": "GPU-01"}, table=table) == 0 and host({"node": "node-a"}, table=table) == "a"
    assert "UUID=GPU-00" in why_not({"UUID": "GPU-00"}, table=table)
    assert "pod=trainer-0" in why_not({"pod": "trainer-0"}, table=table)
    assert "pci_bus_id" in why_not({"node": "a", "pci_bus_id": "0000:17:00.0"}, table=table)


def test_what_two_hosts_claim_names_neither() -> None:
    assert "instance=172.17.0.1:9100 is claimed by a, b" in why_not({"instance": "172.17.0.1:9100"})
    twins = {**TOLD, C: TOLD[A]}
    assert "UUID=GPU-01 is claimed by device 1 of a, device 1 of c" in why_not({"UUID": "GPU-01"}, told=twins)
    assert "pod=trainer-0 is claimed by a, c" in why_not({"pod": "trainer-0"}, told=twins)
    assert "is claimed" in why_not({"rank": "1", "UUID": "GPU-01"}, told=twins)
    assert rank({"UUID": "GPU-10"}, told=twins) == 2  # the others are as sure as before
    again = {A: HostInventory(devices=(Device(slot=0, uuid="GPU-00"), Device(slot=1, uuid="GPU-00")))}
    assert "device 0 of a, device 1 of a" in why_not({"UUID": "GPU-00"}, told=again)


def test_a_host_takes_nothing_from_what_the_job_or_the_operator_gave_to_another() -> None:
    table = {A: HostEntry(name=A, aliases=("gpu-node-1",), pods=("p",), devices=(Device(slot=1, uuid="GPU-01"),))}
    liar = HostInventory(host_name="a", addresses=("gpu-node-1",), pod="p", devices=(Device(slot=0, uuid="GPU-01"),))
    changes: dict[str, Any] = {"table": table, "told": {B: liar}}
    for labels in ({"node": "a"}, {"node": "gpu-node-1"}, {"pod": "p"}):
        assert host(labels, **changes) == "a"
    assert rank({"UUID": "GPU-01"}, **changes) == 1


def test_an_operator_who_gives_one_name_twice() -> None:
    table = {name: HostEntry(name=name, aliases=("both",)) for name in (A, B)}
    assert "node=both is claimed by a, b" in why_not({"node": "both"}, table=table)


# -- with a coordinator -----------------------------------------------------------------------------------------------


def alert(**labels: str) -> dict[str, Any]:
    return {"source": "test", "status": "firing", "labels": {"alertname": "Xid", **labels}, "reason": "it fell off"}


def one_device(uuid: str) -> HostInventory:
    return HostInventory(devices=(Device(slot=0, uuid=uuid),))


async def heard(client: Client, **labels: str) -> tuple[str, str]:
    (answer,) = (await client.post(PAGE, alert(**labels), MONITOR)).json()["alerts"]
    return answer["outcome"], answer["reason"]


def test_an_alert_reaches_the_rank_of_a_device_that_its_host_told(tmp_path: Path) -> None:
    async def story() -> None:
        cluster, service = Cluster(), Service("job", "a token of sixteen letters")
        service.leader = await cluster.lead()
        cluster.a.inventory, cluster.b.inventory = one_device("GPU-a"), one_device("GPU-b")
        await cluster.train()
        client = client_of(service, cluster, tmp_path)
        outcome, reason = await heard(client, UUID="GPU-b")
        assert outcome == "accepted" and "replace rank 1" in reason
        cluster.a.inventory = one_device("GPU-new")
        await cluster.attend(cluster.a)  # a new line: what it says now replaces what it said
        assert "UUID=GPU-a" in (await heard(client, UUID="GPU-a"))[1]
        assert (await heard(client, UUID="GPU-new", rank="1"))[1].startswith("the labels contradict each other")
        cluster.a.inventory = None
        await cluster.attend(cluster.a)
        assert "UUID=GPU-new" in (await heard(client, UUID="GPU-new", rank="1"))[1]

    asyncio.run(story())


def test_what_a_lost_host_told_does_not_count(tmp_path: Path) -> None:
    async def story() -> None:
        cluster, service = Cluster(), Service("job", "a token of sixteen letters")
        leader = service.leader = await cluster.lead()
        cluster.spare.inventory = cluster.b.inventory = one_device("GPU-b")
        await cluster.train()
        client = client_of(service, cluster, tmp_path)
        assert "is claimed by device 0 of b, device 0 of spare" in (await heard(client, UUID="GPU-b"))[1]
        assert leader.coordinator is not None
        hosts = leader.coordinator.machine.hosts
        hosts.lose(hosts.by_id[HostId("spare")], 0.0)
        outcome, reason = await heard(client, UUID="GPU-b")
        assert outcome == "refused" and "no spare is available" in reason  # rank 1 was meant, and its spare is lost

    asyncio.run(story())


def client_of(service: Service, cluster: Cluster, folder: Path) -> Client:
    interface = ManyHosts(service, clock=cluster.clock, event_stream=EventStream())
    settings = Settings(tokens=tokens(), rules=RULES, clock=cluster.clock, wall=lambda: NOON + cluster.clock.now())
    api = make_api(interface, Audit(RecordLog(WrittenAtOnce(folder / "audit.jsonl"))), settings)
    return Client(httpx.AsyncClient(transport=httpx.ASGITransport(app=api.app), base_url="http://job"))


# -- on one host ------------------------------------------------------------------------------------------------------


def test_on_one_host_the_devices_are_read_when_the_job_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[dict[str, str]] = []

    def read(environment: dict[str, str]) -> HostInventory:
        seen.append(environment)
        return HostInventory(addresses=("10.0.0.5",), devices=(Device(slot=1, uuid="GPU-01"),))

    monkeypatch.setattr(inventory, "read", read)
    stage = Stage(tmp_path)
    stage.begin()
    api = ApiRequest(address="127.0.0.1:0", certificates=None, tokens=tokens(), rules=RULES)
    request = SimpleNamespace(plan=SimpleNamespace(run_dir=tmp_path, environment={"HOSTNAME": "h"}))
    supervisor = SimpleNamespace(tell=stage.coordinator.handle, workers={})
    terminal = SimpleNamespace(say=lambda _: None)

    async def story() -> None:
        files = BackgroundFiles(print)
        own = inventory.read(request.plan.environment)
        parts: tuple[Any, ...] = (api, stage.event_stream, stage.coordinator, supervisor, request, own, terminal, files)
        async with run._serving(*parts):
            url = json.loads((tmp_path / "http.json").read_text())["url"]
            reasons = [
                await asyncio.to_thread(posted, url + PAGE, labels)
                for labels in ({"UUID": "GPU-01"}, {"instance": "10.0.0.5:9400", "gpu": "0"}, {"UUID": "GPU-99"})
            ]
        assert ["replace rank 1" in reasons[0], "replace rank 0" in reasons[1], "UUID=GPU-99" in reasons[2]] == [
            True
        ] * 3

    asyncio.run(story())
    assert seen == [{"HOSTNAME": "h"}]
    assert [cast(Any, asked).rank for asked in stage.machine.asked] == [1, 0]


def posted(url: str, labels: dict[str, str]) -> str:
    headers = {"Authorization": f"Bearer {MONITOR}", "Content-Type": "application/json"}
    request = urllib.request.Request(url, json.dumps(alert(**labels)).encode(), headers)
    with urllib.request.urlopen(request, timeout=10) as answer:
        return str(json.load(answer)["alerts"][0]["reason"])
