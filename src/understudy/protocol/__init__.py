"""The pure core: events in, commands out.

Belongs here: every decision about membership, generations, commit and recovery. Must never be here: torch, sockets,
processes, clocks, randomness, logging. The same code runs in the coordinator and in the simulator.

Reading order: `positions` (what a member can say about itself), `commit` (the rule that makes a swap exact), `donors`,
`causes` and `blame` (why a member was lost, and when replacing it is useless), `events`, `commands`, `roster` (who
holds which rank), `hosts`, `pool` (spares), `stages`, `recovery` (one recovery, stage by stage), `telling` (and telling
again), `job` (the machine that joins them), `takeover` (how a coordinator goes on where another one stopped).

The two rules on which everything stands:

1. A generation is recorded before anyone acts on it, and nobody acts on an older one.
2. State changes only when a step commits, and a step commits on all ranks or on none.
"""
