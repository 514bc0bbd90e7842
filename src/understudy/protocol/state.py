"""What the machine knows, as one value: copied, kept and handed on as its type describes it.

Every part of the protocol owns one field of it and is the only one that writes there, except where the field says so.
"""

from dataclasses import dataclass, field

from understudy.protocol.crash_loop import CrashLoop
from understudy.protocol.ending import EndingState
from understudy.protocol.fallback import FallbackState
from understudy.protocol.hosts import Hosts
from understudy.protocol.migration import MigrationState
from understudy.protocol.pool import PoolState
from understudy.protocol.replica_check import ReplicaCheckState
from understudy.protocol.roster import Roster
from understudy.protocol.round_state import RoundState
from understudy.protocol.succession import FORGOTTEN
from understudy.protocol.watchdog import WatchdogState


@dataclass(slots=True)
class State:
    hosts: Hosts = field(default_factory=Hosts)
    roster: Roster = field(default_factory=Roster)
    pool: PoolState = field(default_factory=PoolState)
    crash_loop: CrashLoop = field(default_factory=CrashLoop)
    round: RoundState = field(default_factory=RoundState)
    fallback: FallbackState = field(default_factory=FallbackState)
    migration: MigrationState = field(default_factory=MigrationState)
    replica_check: ReplicaCheckState = field(default_factory=ReplicaCheckState)
    watchdog: WatchdogState = field(default_factory=WatchdogState)
    ending: EndingState = field(default_factory=EndingState)
    now: float = field(default=0.0, metadata=FORGOTTEN)  # of the newest event
