from understudy.foundation.ids import Rank
from understudy.protocol.commands import DecisionKind
from understudy.protocol.policy import Policy
from understudy.protocol.reasons import Code, because
from understudy_testkit.simulator.acts import Act, play_acts
from understudy_testkit.simulator.faults import Fault, FaultKind, Moment
from understudy_testkit.simulator.script import Script

SCRIPT = Script(world_size=4, steps=150, fenced=False, replaceable=True)
KILL = Fault(kind=FaultKind.KILL, moment=Moment.COMPUTING, rank=Rank(2), step=10)
HANG = Fault(kind=FaultKind.HANG, moment=Moment.COLLECTIVE, rank=Rank(1), step=100)
ACTS = (Act(step=10, faults=(KILL,)), Act(step=40, spares=(3, 0, 1)), Act(step=100, faults=(HANG,)))


def test_acts_come_at_their_steps_and_every_time_the_same() -> None:
    decisions = play_acts("a", SCRIPT, Policy(world_size=4, spares=0), ACTS)
    kinds = [decision.kind for decision in decisions]
    assert kinds.count(DecisionKind.SWAP) == 2 and kinds.count(DecisionKind.HOST) == 3
    assert kinds.count(DecisionKind.DEGRADE) == 1 and kinds.count(DecisionKind.MOVE) == 1
    assert decisions[-1].reason == because(Code.ALL_SCRIPTS_ENDED)
    assert decisions == play_acts("a", SCRIPT, Policy(world_size=4, spares=0), ACTS)


def test_another_seed_takes_other_times() -> None:
    policy = Policy(world_size=4, spares=0)
    assert play_acts("a", SCRIPT, policy, ACTS) != play_acts("b", SCRIPT, policy, ACTS)
