"""The devices on which training runs: what the product must know of one, and nothing that is about groups.

Belongs here: the contract of a device, our devices (the CPU; CUDA, untested), and the only questions about kinds of
devices that the product asks. Must never be here: process groups, membership, state.
"""
