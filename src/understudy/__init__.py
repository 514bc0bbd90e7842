"""Understudy: a spare process takes over a dead training rank at the same step, bit for bit."""
