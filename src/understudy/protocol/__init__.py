"""The pure core: events in, commands out.

Belongs here: every decision about membership, generations, commit and recovery. Must never be here: torch, sockets,
processes, clocks, randomness, logging. The same code runs in the coordinator and in the simulator.

Reading order: `positions` (what a member can say about itself), `commit` (the rule that makes a swap exact),
`donors`, `causes` (why a member was lost), `reasons` (why anything is decided; `sentences` and `advice` have the
words), `events`, `commands`, `stages` (which follows which), `state` (all that the machine knows, as one value). Then
the parts, each with the state that it owns, from the bottom: `hosts`; `roster`, `pool`, `refill`, `crash_loop` and
`member_loss` (membership); `round`, `outbound`, `deadlines` (one recovery, stage by stage); `fallback` and `checks`
(strategies below a swap, checks after a recovery); `migration` and `admission` (moves and other requests);
`replica_check`; `watchdog`; `host_events`. `job` joins them and gives each a narrow `context`. `takeover`: how a
coordinator goes on where another one stopped.

The two rules on which everything stands:

1. A generation is recorded before any process acts on it, and no process acts on an older one.
2. State changes only when a step commits, and a step commits on all ranks or on none.
"""
