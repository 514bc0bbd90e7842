"""A message is described once: events and commands are what goes over the wire, and no layer translates them.

A new field of a position report is declared in `protocol/positions.py`, set where a member knows it and read where the
protocol needs it; nothing between them names it.
"""

import ast
from collections import Counter

from tests.house.descriptions import Modules, alike, copies_field_by_field, fields_by_type, overlaps
from tests.house.sources import Sources

from understudy.protocol.positions import Position

LINES_OF_A_LEDGER = ("understudy.ledger.records.DecisionRecord", "understudy.protocol.commands.RecordDecision")
"""A ledger is read by later versions and by other programs: its lines have a form of their own."""

GREETING = {
    ("understudy.agent.coordinator_client", "wire.Attend"),  # from what the operator has said on the command line
    ("understudy.coordinator.leader", "ev.HostJoined"),  # a host asks; that it has joined only the coordinator can say
}
LINES = {
    ("understudy.coordinator.coordinator", "DecisionRecord"),
    ("understudy.agent.evidence", "DecisionRecord"),
    ("understudy.coordinator.recovery_clock", "RecoveryRecord"),
}


def modules_of(*packages: str) -> Modules:
    names = tuple(f"understudy.{package}" for package in packages)
    return {module: tree for module, tree in Sources().modules.items() if module.startswith(names)}


def test_no_two_types_declare_the_same_fields() -> None:
    modules = Sources().modules
    assert len(fields_by_type(modules)) > 200
    assert alike(modules, fewest=3) <= {LINES_OF_A_LEDGER}


def test_the_name_of_a_message_means_one_type() -> None:
    names = Counter(name.rpartition(".")[2] for name in fields_by_type(modules_of("protocol", "wire", "ledger")))
    assert {name for name, count in names.items() if count > 1 and not name.startswith("_")} == set()


def test_no_type_of_the_wire_repeats_one_of_the_protocol_or_the_ledger() -> None:
    found = overlaps(modules_of("wire"), modules_of("protocol", "ledger"), most=3)
    assert {one for one, _ in found} <= {"understudy.wire.host_messages.Attend"}, found


def test_agent_and_coordinator_build_no_message_from_the_fields_of_another() -> None:
    types = {name.rpartition(".")[2] for name in fields_by_type(modules_of("protocol", "wire", "ledger"))}
    copied = copies_field_by_field(modules_of("agent", "coordinator", "wire"), fewest=3)
    assert {(module, called) for module, called in copied if called.rpartition(".")[2] in types} <= GREETING | LINES


def test_nothing_between_a_member_and_the_protocol_names_a_field_of_a_position() -> None:
    between = modules_of("wire", "agent", "coordinator")
    fields = set(Position.__dataclass_fields__) - {"kept"}  # a module of the coordinator has this name
    named = {
        (module, name)
        for module, tree in between.items()
        for node in ast.walk(tree)
        for name in (getattr(node, "attr", None), getattr(node, "arg", None), getattr(node, "id", None))
        if name in fields
    }
    assert fields >= {"holds", "in_tail", "durable"} and named == set()


def test_what_they_look_for_is_found() -> None:
    told = """
@dataclass(frozen=True)
class Report:
    step: int
    rank: int
    why: str

class Told(Message, frozen=True, kw_only=True):
    why: str
    step: int
    rank: int

def translated(report):
    return Told(step=Step(report.step), rank=report.rank, why=report.why)
"""
    modules = {"house": ast.parse(told)}
    assert alike(modules, fewest=3) == {("house.Report", "house.Told")} and not alike(modules, fewest=4)
    assert overlaps(modules, modules, most=2) >= {("house.Told", "house.Report")}
    assert copies_field_by_field(modules, fewest=3) == {("house", "Told")}
