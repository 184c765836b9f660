"""The words for what is inefficient in a block's life, from the bits in which the folds tell it.

In: the bits of native/kernel/block_patterns.h. Out: words in the order in which they were seen, as upstream joins them.
"""

from __future__ import annotations

from msmemscope._kernel import IDLE_FIRST, PATTERNS

EARLY, LATE, IDLE = "early_allocation", "late_deallocation", "temporary_idleness"
UNUSED, DEAD, REDUNDANT = "unused_allocation", "dead_write", "redundant_allocation"
UPSTREAM = (EARLY, LATE, IDLE)
"""Those that upstream knows."""

NAMES = {bit: name for name, bit in PATTERNS.items()}


def words_of(bits: int, *, only: tuple[str, ...] = ()) -> tuple[str, ...]:
    """only: words that are wanted; () for all."""
    first = (IDLE, EARLY) if bits & IDLE_FIRST else (EARLY, IDLE)
    ordered = (*first, LATE, UNUSED, DEAD, REDUNDANT)
    return tuple(word for word in ordered if bits & PATTERNS[word] and (not only or word in only))


def joined(bits: int, *, only: tuple[str, ...] = ()) -> str:
    """ "early_allocation,late_deallocation"; "" for none."""
    return ",".join(words_of(bits, only=only))
