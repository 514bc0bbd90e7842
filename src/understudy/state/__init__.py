"""What a rank holds: listing it (manifest), comparing it (digests, twins), and moving it (transfer).

Must never be here: when to move it (that is `protocol`) and process groups (that is `groups`).
"""
