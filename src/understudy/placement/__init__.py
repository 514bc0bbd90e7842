"""Which host of a job this is: from flags, and from variables that launchers and schedulers set.

Belongs here: rules from values to values, so that an environment which was recorded somewhere else can be tried
anywhere. Must never be here: reading the environment, files, the network or the clock; the command line does that and
passes what it found.
"""
