"""Decides for one job: feeds events into `protocol`, carries out its commands, keeps the ledger of decisions.

Never imports torch. On one host it lives in the same process as the agent, with its state in memory.
"""
