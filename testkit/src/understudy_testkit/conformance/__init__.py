"""Suites that check a part against its contract, one module for each contract. A part may be ours or a third party's.

Belongs here: rules that every part of a kind must keep, and made-up stories that try them. Must never be here: torch,
processes, real time, and tests of what one part is for.
"""
