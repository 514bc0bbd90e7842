"""State goes from donors into a receiver's own tensors: over the process group, or out of the donor's memory on one
host.

A donor shows its manifest; the receiver asks for chunks, and checks every digest. Must never be here: which rank gives
to which (that is `protocol`), and files.
"""
