"""Earlier states to which a rank can go back: in plain memory, in peer memory, on disk.

Says when a copy is taken and how it comes back; the copies themselves are in `state`.
"""
