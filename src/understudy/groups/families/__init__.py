"""Families of communicators: the contract of one, and ours (gloo; NCCL, untested).

Belongs here: one file per family, with everything that is true of that family alone. Must never be here: how groups are
kept over a regroup (`groups.world`), which is the same for all.
"""
