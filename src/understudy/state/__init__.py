"""What a rank holds: listing it (manifest), comparing it (digests, twins), moving it (transfer), and keeping it on disk
(durable, restoring).

Must never be here: when to move it (that is `protocol`) and process groups (that is `groups`).
"""
