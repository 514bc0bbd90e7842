"""How a digest in the ledger was taken: its text says so. Two digests of different kinds say nothing about each other.

Knows no tensors; `state.state_digests` takes them.
"""

XXH3, WORD_SUMS = "xxh3", "word-sums"
KINDS = (XXH3, WORD_SUMS)

MARKS = {XXH3: "", WORD_SUMS: "sums:"}
"""What the text of a digest begins with. Those by xxh3 have no mark: they are the older ones."""


def kind_of(digest: str) -> str:
    return WORD_SUMS if digest.startswith(MARKS[WORD_SUMS]) else XXH3
