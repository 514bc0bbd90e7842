"""Ordinary and unusual days of a job: scripts as people write them, what may happen to them, and how each must end."""
