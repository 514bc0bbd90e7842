"""The acceptance of accelerators (`understudy doctor --accelerators`): what only a machine that has some can show.

One file per part, from A (the box) to G (what is sent back). A part tries things through the two seams (`devices`,
`groups.families`), so that what needs no GPU runs on an emulated device as well. Processes that touch a device are
forked from the product's fork server (`nursery`), do one thing at a time when they are asked for it (`rank_process`),
and may be killed or stopped meanwhile (`rank`).

Here: trying and judging. Never here: whatever needs the testkit; it brings its parts by entry points (`brought`).
"""
