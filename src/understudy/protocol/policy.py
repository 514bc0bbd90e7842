"""What the operator allows, and the one budget of time from which every deadline is derived."""

import math
from dataclasses import dataclass

from understudy.protocol.rungs import RungLimits


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """One owner for each limit of the protocol; the flag that sets it is named beside it."""

    world_size: int  # --nproc-per-node
    spares: int = 0  # --spares: how many warm processes to keep (on one host; many hosts each say their own)
    hosts: int = 1  # --nnodes: the world is founded when so many hosts with ranks are there
    host_patience: float = 0.8  # --host-timeout: seconds from the end of a host's connection until it counts as lost
    takeover_patience: float = 15.0  # the same right after a coordinator has taken over, while hosts find it
    suspicion: float = 600.0  # --host-quarantine: seconds for which no rank goes to a host that was lost
    max_start_overs: int = 3  # --max-restarts: how often the whole world may begin again before its first commit
    max_replacements: int = 1000  # --max-replacements: processes that may be started after the first ones
    max_deaths_per_step: int = 5  # --max-deaths-per-step
    spare_failures_in_a_row: int = 3  # spares that may die before becoming warm until the host counts as unhealthy
    unresponsive_timeout: float = 2.0  # --unresponsive-timeout: a stopped or deaf rank that others wait for
    busy_timeout: float = 60.0  # --busy-timeout: a rank that is busy in a step while all others wait for it
    idle_timeout: float = 1800.0  # --idle-timeout: the same between steps (evaluation, saving)
    setup_timeout: float = 1800.0  # --setup-timeout: from the start of a world to its first step
    stall_floor: float = 10.0  # --step-timeout-min: no deadline of a deadlock is shorter than this many seconds
    stall_factor: float = 10.0  # --step-timeout-factor: deadline = factor x the pace of recent steps
    preparation_limit: float = 300.0  # --warmup-timeout: a joiner's imports, setup and rehearsal, at least
    forming_limit: float = 120.0  # --regroup-timeout: regroup and transfer, without any progress
    setups_per_preparation: float = 3.0  # a joiner may take so many times as long as the world's own setup took
    donors_per_receiver: int = 8  # more than one helps while one connection does not fill the way between them
    recovery_attempts: int = 20  # generations in a row without a resumed world until the job stops
    attempts_per_rung: int = 5  # generations in a row without a resumed world until all processes begin anew
    rungs: RungLimits = RungLimits()  # --policy: how often each rung of the ladder may be taken
    probation: int = 3  # --policy: steps after a recovery in which bad state leads to the next rung
    boundary_notice: float = 0.05  # seconds for the news of a boundary to reach every rank before it gets there
    checkpoints: bool = False  # --checkpoint-dir: members can be asked which durable checkpoints there are
    peer_memory: int = 0  # --peer-snapshot-every: ranks without a twin are saved every so many steps; 0: never
    min_healthy: int = 0  # --min-healthy: ranks that must be well for a request to be granted; 0: half
    resend_every: float = 2.0  # a message that was not answered is sent again after this many seconds
    refill_delay: float = 1.0  # a new spare imports its modules after the world has found its pace again

    @property
    def ranks_per_host(self) -> int:
        return max(1, self.world_size // self.hosts)

    def boundary_after(self, newest: int, pace: float) -> int:
        """The first step that no rank will have begun when the news of it arrives."""
        return newest + 1 + (math.ceil(self.boundary_notice / pace) if pace > 0 else 1)

    def healthy_enough(self, healthy: int) -> bool:
        return healthy >= (self.min_healthy or max(1, self.world_size // 2))

    def stall_deadline(self, pace: float) -> float:
        """How long ranks may wait for each other before that is called a deadlock, given how long steps take."""
        return max(self.stall_floor, self.stall_factor * pace)
