"""Plugins, ours and those of other packages: which kinds there are, and how one is found and loaded.

Belongs here: the table of kinds, the registry, and contracts of kinds that have no folder of their own yet. Must never
be here: a plugin, or an import of one. The contract of a kind stands beside the code that uses it; docs/plugins.md.
"""
