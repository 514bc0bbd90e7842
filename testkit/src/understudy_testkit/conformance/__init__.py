"""Suites that check a plugin against its contract, one module for each kind. A plugin may be ours or a third party's.

Belongs here: rules that every plugin of a kind must keep, and made-up stories that try them. Must never be here:
processes, and tests of what one plugin is for; and torch and real time only where a contract is about them
(`communicators`, `devices`, `stores`). `understudy plugins --check` runs the suites.
"""
