"""Files on disks that may be full, read-only, slow, or gone: a writer here neither fails nor waits.

Belongs here: appending to a file in spite of trouble, doing it in the background, saying once that there is trouble;
the permissions of what we write, and reading the secrets that we are given.
Must never be here: what the bytes mean (records are the ledger's), decisions about the job.
"""
