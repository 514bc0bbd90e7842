"""Drives the real `protocol.job.JobMachine`, unchanged, on a virtual clock.

Belongs here: a model of workers, of the network between them and the coordinator, of faults; the invariants that must
hold after every event; the exhaustive exploration of a small world. Must never be here: the engine, processes, real
time, unseeded chance, and decisions about recovery (those are the protocol's).

Reading order: `script` (what is played), `member` (how one worker behaves), `invariants`, `world` (carries out
commands), `faults`, `network`, `simulation` (seeded, timed, lossy), `scenarios` (seed -> everything about one run),
`explorer` (every interleaving of a small world), `seeded_bugs` (a commit rule with a bug, which both must find).
"""
