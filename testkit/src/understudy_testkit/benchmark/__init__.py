"""The neutral benchmark: the same faults and the same work for every approach.

Here belong: scenarios, the work itself, what is recorded, the arms (one file each), the runner, the evaluation and the
report. Never here: anything that one arm gets and another does not. `workers/` holds the training script of each arm;
the scripts share model, data and recording, and differ only in what their approach asks for.
"""
