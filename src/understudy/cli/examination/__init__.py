"""The parts of `understudy doctor`. Each looks at one thing and returns findings; what to do about one stands in it.

Here: looking and judging. Never here: changing anything, loading torch, deciding about a job.
"""
