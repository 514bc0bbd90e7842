"""Training goes on without some ranks, at the same global batch: their batches are divided among the others.

Which rank takes what is in `protocol`. Must never be here: how a world is formed without them (that is `groups`).
"""
