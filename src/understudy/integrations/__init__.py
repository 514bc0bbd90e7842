"""Thin adapters for trainers of other packages, each a module of its own that its user imports, and nothing here.

An adapter uses what a script may use as well (`join`, `protect`, windows, sections), and wraps functions of its
framework that exist. It copies no loop, and says with name and version when a function is gone.
"""
