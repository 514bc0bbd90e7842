"""From labels to a rank, from an alert to a request, and all the reasons for which there is none."""

from pathlib import Path

import pytest

from understudy.api.alerts import Alert, Consideration, Moment, consider, identity, seconds_of
from understudy.api.registry import HostEntry, HostTarget, Nothing, RankTarget, Registry
from understudy.api.rules import Rule, RuleAction, Rules, Scope, read_rules
from understudy.errors import SettingsError
from understudy.foundation.ids import Generation, HostId, Rank
from understudy.protocol.job import JobMachine
from understudy.protocol.policy import Policy
from understudy.protocol.requests import DrainHost, MoveRanks, ReplaceRank
from understudy.protocol.roster import Standing
from understudy.wire.inventory import Device

NOW = Moment(machine=1000.0, wall=1_800_000_000.0)
A, B, C = HostId("a"), HostId("b"), HostId("c")
TABLE = {
    A: HostEntry(
        name=A,
        aliases=("node-a", "10.0.0.1"),
        pods=("trainer-0",),
        devices=(
            Device(slot=0, uuid="GPU-00", pci_bus_id="00000000:17:00.0"),
            Device(slot=1, uuid="GPU-01", pci_bus_id="00000000:65:00.0"),
        ),
    ),
    B: HostEntry(name=B, devices=(Device(slot=0, uuid="GPU-10"),)),
}
REGISTRY = Registry(TABLE)


def a_job() -> JobMachine:
    """Ranks 0 and 1 on host a, rank 2 on b, since the job's 900th second; host c has none."""
    machine = JobMachine(Policy(world_size=3, hosts=2))
    for host, ranks in ((A, 2), (B, 1), (C, 0)):
        machine.hosts.join(host, ranks, 1)
    for rank, host in enumerate((A, A, B)):
        machine.roster.seat(machine.roster.new_spare(host), Rank(rank), Standing.ACTIVE, Generation(1), 900.0)
    return machine


def target(**labels: str) -> RankTarget | HostTarget | Nothing:
    machine = a_job()
    return REGISTRY.target(labels, machine.roster, list(machine.hosts.by_id))


@pytest.mark.parametrize(
    ("labels", "rank"),
    [
        ({"rank": "2"}, 2),
        ({"rank": "1", "host": "a"}, 1),
        ({"UUID": "GPU-01"}, 1),
        ({"UUID": "GPU-01", "Hostname": "node-a", "gpu": "1"}, 1),
        ({"node": "node-a", "gpu": "0"}, 0),
        ({"instance": "10.0.0.1:9400", "gpu": "1"}, 1),
        ({"pod": "trainer-0", "pci_bus_id": "00000000:65:00.0"}, 1),
        ({"uuid": "GPU-10"}, 2),
    ],
)
def test_labels_that_mean_a_rank(labels: dict[str, str], rank: int) -> None:
    found = target(**labels)
    assert isinstance(found, RankTarget) and found.rank == rank


@pytest.mark.parametrize("labels", [{"host": "a"}, {"instance": "node-a:9100"}, {"pod": "trainer-0"}, {"node": "a"}])
def test_labels_that_mean_a_host(labels: dict[str, str]) -> None:
    found = target(**labels)
    assert isinstance(found, HostTarget) and found.host == "a" and [one.rank for one in found.ranks] == [0, 1]


@pytest.mark.parametrize(
    ("labels", "why"),
    [
        ({}, "no label names"),
        ({"severity": "critical"}, "no label names"),
        ({"host": "elsewhere"}, "host=elsewhere"),
        ({"host": "else\nwhere"}, "host=else?where"),
        ({"pod": "a"}, "pod=a"),  # a pod is no host, though one may be called so
        ({"UUID": "GPU-99"}, "UUID=GPU-99"),
        ({"node": "a", "UUID": "GPU-99", "gpu": "1"}, "UUID=GPU-99"),
        ({"node": "a", "gpu": "7"}, "no rank uses device 7"),
        ({"node": "a", "gpu": "x"}, "gpu=x"),
        ({"gpu": "1"}, "no label names"),
        ({"node": "b", "pci_bus_id": "00000000:17:00.0"}, "pci_bus_id"),
        ({"rank": "9"}, "no member holds rank=9"),
        ({"rank": "-1"}, "no member holds"),
        ({"rank": "1" * 5000}, "no member holds"),
        ({"rank": "\N{SUPERSCRIPT TWO}"}, "no member holds"),
        ({"rank": "2", "instance": "10.9.9.9:9400"}, "instance=10.9.9.9:9400"),
        ({"rank": "2", "UUID": "GPU-99"}, "UUID=GPU-99"),
        ({"rank": "2", "host": "a"}, "contradict"),
        ({"rank": "0", "UUID": "GPU-01"}, "contradict"),
        ({"host": "a", "node": "b"}, "contradict"),
        ({"host": "b", "UUID": "GPU-01"}, "contradict"),
    ],
)
def test_labels_that_mean_nothing_are_never_guessed(labels: dict[str, str], why: str) -> None:
    found = target(**labels)
    assert isinstance(found, Nothing) and why in found.why


# -- decisions --------------------------------------------------------------------------------------------------------

RULES = Rules(
    rules=(
        Rule(alert="Xid", action=RuleAction.ABORT, match={"xid": ("79", "48")}),
        Rule(alert="Xid", action=RuleAction.DRAIN),
        Rule(alert="Node", action=RuleAction.DRAIN, scope=Scope.HOST),
        Rule(alert="Loud", action=RuleAction.NOTE),
        Rule(alert="*", action=RuleAction.ABORT, match={"team": ("*",)}),
    )
)


def think(name: str, started_ago: float | None = 30.0, firing: bool = True, **labels: str) -> Consideration:
    started = None if started_ago is None else NOW.wall - started_ago
    alert = Alert(source="test", name=name, labels=labels, firing=firing, started=started, key="k", said="it\nis hot")
    return consider(alert, RULES, REGISTRY, a_job(), NOW)


def test_what_is_asked() -> None:
    replace = think("Xid", xid="79", UUID="GPU-01").request
    assert isinstance(replace, ReplaceRank) and (replace.rank, replace.member, replace.at) == (1, "m-1", 1000.0)
    assert replace.reason == "alert Xid from test (it is hot)"
    move = think("Xid", xid="13", UUID="GPU-01").request
    assert isinstance(move, MoveRanks) and move.ranks == (1,)
    drain = think("Xid", host="a").request
    assert isinstance(drain, DrainHost) and drain.host == "a"
    drain = think("Node", rank="2").request
    assert isinstance(drain, DrainHost) and drain.host == "b"
    only_one = think("Other", team="x", host="b").request
    assert isinstance(only_one, ReplaceRank) and only_one.rank == 2
    empty = think("Node", host="c").request
    assert isinstance(empty, DrainHost) and empty.host == "c"


@pytest.mark.parametrize(
    ("thought", "why"),
    [
        (think("Unheard", rank="1"), "no rule fits alertname=Unheard"),
        (think("Loud", rank="1"), "only record"),
        (think("Xid", rank="1", firing=False), "resolved"),
        (think("Xid", None, rank="1"), "cannot be read"),
        (think("Xid", 601.0, rank="1"), "longer than the 600 s"),
        (think("Xid", -120.0, rank="1"), "look at the clocks"),
        (think("Xid", 101.0, rank="1"), "before m-1 took over rank 1"),
        (think("Xid", 101.0, host="a"), "before any rank of host a"),
        (think("Xid", host="nowhere"), "host=nowhere"),
        (think("Other", team="x", host="a"), "acts on one rank"),
        (think("Other", team="", rank="1"), "no rule"),
    ],
)
def test_what_is_only_noted(thought: Consideration, why: str) -> None:
    assert thought.request is None and thought.action is RuleAction.NOTE and why in thought.why


def test_times() -> None:
    assert seconds_of("1970-01-01T00:01:00.123456789Z") == pytest.approx(60.123456)
    assert seconds_of("1970-01-01T01:01:00+01:00") == 60.0
    for wrong in ("", "soon", "1970-01-01T00:01:00", "9999-99-99T00:00:00Z", "0001-01-01T00:00:00+14:00"):
        assert seconds_of(wrong) is None or wrong.startswith("0001")


def test_identity() -> None:
    labels = {"b": "2", "a": "1"}
    same = identity("s", "f", labels, "1970-01-01T00:01:00Z")
    assert same == identity("s", "f", {}, "1970-01-01T01:01:00.000+01:00")
    assert same != identity("s", "f", labels, "1970-01-01T00:01:01Z")
    assert identity("s", "", labels, "") == identity("s", "", {"a": "1", "b": "2"}, "")
    assert identity("s", "", {"a": "\ud800"}, "") != identity("s", "", labels, "")


# -- the file ---------------------------------------------------------------------------------------------------------


def test_a_rules_file(tmp_path: Path) -> None:
    file = tmp_path / "rules.toml"
    file.write_text(
        """
        max_age_seconds = 60
        [[rule]]
        alert = "Xid"
        match = { xid = ["79", "48"], severity = "critical" }
        action = "abort"
        [[rule]]
        alert = "*"
        action = "note"
        scope = "host"
        [[host]]
        name = "a"
        aliases = ["node-a"]
        devices = [{ slot = 1, uuid = "GPU-01" }]
        """
    )
    rules = read_rules(file)
    assert rules.max_age == 60.0 and rules.hosts[A].devices == (Device(slot=1, uuid="GPU-01"),)
    found = rules.first("Xid", {"xid": "48", "severity": "critical"})
    assert found is not None and found.action is RuleAction.ABORT
    found = rules.first("Xid", {"xid": "48"})
    assert found is not None and (found.action, found.scope) == (RuleAction.NOTE, Scope.HOST)


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("[[rule]]\naction = 'note'", "rule[0].alert"),
        ("[[rule]]\nalert = 'x'\naction = 'kill'", "rule[0].action: there is abort, drain, note"),
        ("[[rule]]\nalert = 'x'\naction = 'note'\nwhen = 1", "rule[0].when: there is no such key"),
        ("[[rule]]\nalert = 'x'\naction = 'note'\nmatch = { a = 1 }", "rule[0].match.a"),
        ("[[rule]]\nalert = 'x'\naction = 'note'\nmatch = 3", "rule[0].match"),
        ("[rule]\nalert = 'x'", "rule: give"),
        ("max_age_seconds = 0", "max_age_seconds"),
        ("max_age_seconds = true", "max_age_seconds"),
        ("max_age_seconds = nan", "max_age_seconds"),
        ("rules = []", "rules: there is no such key"),
        ("[[host]]\naliases = []", "host[0].name"),
        ("[[host]]\nname = 'a'\n[[host]]\nname = 'a'", "host: a name stands there twice"),
        ("[[host]]\nname = 'a'\ndevices = [{ uuid = 'x' }]", "host[0].devices[0].slot"),
        (
            "[[host]]\nname = 'a'\ndevices = [{slot = 0, uuid = 'x'}, {slot = 1, uuid = 'x'}]",
            "a uuid stands there twice",
        ),
        ("= 3", "line 1"),
    ],
)
def test_what_is_wrong_with_a_rules_file_is_named(tmp_path: Path, text: str, key: str) -> None:
    file = tmp_path / "rules.toml"
    file.write_text(text)
    with pytest.raises(SettingsError) as wrong:
        read_rules(file)
    assert str(file) in str(wrong.value) and key in str(wrong.value)


def test_a_rules_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="No such file"):
        read_rules(tmp_path / "none")
