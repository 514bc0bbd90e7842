"""What notices that something is wrong: a missing heartbeat is evidence, never a membership change by itself.

Belongs here: progress pages, the contract of detectors, detectors (stalls, stragglers, devices). Must never be here:
decisions about membership (that is `protocol`).
"""
