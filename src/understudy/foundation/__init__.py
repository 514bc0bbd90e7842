"""What everything else stands on: identities, the clock, and the only reader of the environment.

Belongs here: names for numbers, time as a value that comes in through the door, and small rules that several folders
share (how often, what may be shown). Must never be here: decisions, I/O other than reading the environment and the
clock.
"""
