"""What was committed, and why things were decided. Append-only; one JSON object per line.

Belongs here: records, writing and reading them, comparing two runs, telling the story of one. Must never be here:
decisions about the job, tensors (digests arrive as text).

A run's folder:  run.json                     what was started (RunInfo)
                 ledger/steps-<member>.jsonl  one StepRecord per step that this member committed or inherited
                 ledger/decisions.jsonl       DecisionRecord and RecoveryRecord, in the order in which they were made
                 ledger/audit.jsonl           one AuditRecord per request over HTTP
                 ledger/incomplete-<writer>   empty: not everything that this writer wrote is here
"""
