"""Durable checkpoints: a rank's state on a disk that outlives all processes, in the format of
torch.distributed.checkpoint.

Must never be here: when to save (that is `training`), and collectives. Ranks agree through files.
"""
