"""What a user touches: join, protect, steps. Runs inside the user's script, in the worker process.

`joining` and `job` are the door; `steps` and `body` are one attempt at a step; `member` puts the parts together. How a
fault is survived is in `recovery`, where earlier states come from in `snapshots`, what belongs to one rank alone in
`rank_local`, batches in `data`, a world without some of its ranks in `degraded`.
"""
