"""Which host hears which command."""

import asyncio

from understudy.coordinator.hosts import HostConnections
from understudy.foundation.ids import Generation, HostId, MemberId, Rank, StepNumber
from understudy.protocol import commands as cmd
from understudy.protocol.reasons import Code, because
from understudy.wire import host_messages as wire

WHY = because(Code.TOLD, text="a test wants it")
A, B = HostId("a"), HostId("b")
M0, M1, M2, M3 = (MemberId(f"m-{number}") for number in range(4))
LIVES = {M0: A, M1: A, M2: B}  # m-3 lives on a host that is away
FIRST = Generation(1)


def heard(command: cmd.ToAgent) -> tuple[dict[HostId, list[cmd.ToAgent]], dict[str, int]]:
    """The commands that reach each host, and what was dropped."""

    async def story() -> tuple[dict[HostId, list[cmd.ToAgent]], dict[str, int]]:
        lines = HostConnections(term=4)
        open_lines = {host: lines.open(host) for host in (A, B)}
        for member, host in {**LIVES, M3: HostId("away")}.items():
            lines.lives_on(member, host)
        lines.carry_out(command)
        orders: dict[HostId, list[cmd.ToAgent]] = {}
        for host, line in open_lines.items():
            while not line._waiting.empty():
                order = wire.decode_to_host(await line.take())
                assert isinstance(order, wire.Order) and order.term == 4
                orders.setdefault(host, []).append(order.command)
        return orders, dict(lines.dropped)

    return asyncio.run(story())


def test_each_host_hears_a_command_once_with_its_own_members_in_it() -> None:
    def release(*members: MemberId) -> cmd.ReleaseMembers:
        return cmd.ReleaseMembers(generation=FIRST, members=members)

    orders, dropped = heard(release(M0, M2, M1, M3))
    assert orders == {A: [release(M0, M1)], B: [release(M2)]} and dropped == {"ReleaseMembers": 1}


def test_leavers_are_told_the_plan_as_leavers() -> None:
    def plan(members: tuple[MemberId, ...], leavers: tuple[MemberId, ...]) -> cmd.ResumeAt:
        return cmd.ResumeAt(
            generation=FIRST,
            step=StepNumber(7),
            members=members,
            leavers=leavers,
            donors=((Rank(1), (Rank(1),)),),
            store=A,
            store_address="a:29500",
            reason=WHY,
        )

    orders, _ = heard(plan((M0, M2), (M1,)))
    assert orders == {A: [plan((M0,), (M1,))], B: [plan((M2,), ())]}


def test_commands_for_hosts_go_where_they_say() -> None:
    start = cmd.StartMember(member=MemberId("m-9"), seat=cmd.Seat(rank=Rank(0), store_address="a:29500"), host=B)
    dismiss = cmd.DismissStranger(host=A, member=M2, reason=WHY)
    kill = cmd.KillMember(member=M2, reason=WHY, hang=True)
    stop = cmd.StopJob(outcome=cmd.Outcome.STOPPED, reason=WHY, exit_code=130)
    assert heard(start)[0] == {B: [start]} and heard(dismiss)[0] == {A: [dismiss]} and heard(kill)[0] == {B: [kill]}
    assert heard(stop)[0] == {A: [stop], B: [stop]}
    a, b = (cmd.WatchClosely(generation=FIRST, hosts=(host,)) for host in (A, B))
    assert heard(cmd.WatchClosely(generation=FIRST))[0] == {A: [a], B: [b]} and heard(b)[0] == {B: [b]}
