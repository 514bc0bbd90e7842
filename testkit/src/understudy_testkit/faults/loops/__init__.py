"""Loops as people write them: plain training scripts, run with faults by the claim `real-loops` and by tests."""
