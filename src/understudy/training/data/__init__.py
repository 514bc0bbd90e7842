"""Where a step's batch comes from: a function of the step, or a loader whose position is shipped with its rank.

Must never be here: members and recoveries.
"""
