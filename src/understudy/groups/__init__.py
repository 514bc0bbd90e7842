"""Process groups of the engine: sandbox, abort, regroup in place, per-engine reset.

Belongs here: everything that touches torch.distributed groups. Must never be here: state transfer, membership.
"""
