"""Test equipment of Understudy: what tests, claims and authors of plug-ins use, and no training job needs.

    simulator/    drives the protocol on a virtual clock
    faults/       faults as data, and the injectors, jobs and clusters on which they strike
    benchmark/    the same faults and work for several approaches (`understudy bench`)
    conformance/  suites that check a plugin against its contract

Belongs here: whatever breaks, imitates or measures the product. Must never be here: anything that `understudy` imports
(import-linter checks it). The four folders do not import each other.
"""
