"""Peer memory: copies of a rank's state in memory that outlives its process, on its own host and on another one.

Must never be here: when a copy is taken (that is `training`).
"""
