"""What a rank holds: listing it (protected_state), comparing it (digests), moving it (transfer), copying it where it
outlives a process (peer_memory, rank_local_files) or all of them (checkpoint), and taking changes back (buffers, undo).

Must never be here: when to do any of it (that is `training` and `protocol`) and process groups (that is `groups`).
"""
