"""The driver's segments of a history as blocks: each is given and taken back as a whole.

In: ranges of addresses in the order in which they were given and taken back, and those that are there at the end. Out:
blocks. An expandable segment is mapped and unmapped in pieces that need not be the same; where there are such, all
ranges are cut at every boundary that one of them has. What is taken back without having been given, or is there at the
end without it, was there before.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Addresses = npt.NDArray[np.uint64]

MOST_PIECES = 1 << 24
"""Into which all ranges together are cut; beyond, they are taken as they are."""


@dataclass(frozen=True)
class Ranges:
    """addr and size in bytes. gives: whether it was given (True) or taken back."""

    addr: Addresses
    size: Ints
    gives: npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Blocks:
    """entry: of each event the range of the history that it is of. before_*: blocks from before it. unpaired: pieces
    that were given twice in a row, taken back twice, or are not as the end has them."""

    entry: Ints
    addr: Addresses
    size: Ints
    before_addr: Addresses
    before_size: Ints
    unpaired: int


def as_blocks(history: Ranges, at_end: Ranges, *, is_cut: bool) -> Blocks:
    """is_cut: whether pieces may be given and taken back otherwise."""
    entry, addr, size = _pieces(history, at_end, is_cut)
    gives = np.concatenate([history.gives, at_end.gives])[entry]
    is_end = entry >= len(history.addr)
    order = np.lexsort((entry, addr))
    first = np.ones(len(order), bool)
    first[1:] = addr[order][1:] != addr[order][:-1]
    last = np.append(first[1:], True) if len(order) else first
    gives, is_end = gives[order], is_end[order]
    # The first that is heard of a piece: taken back, or there at the end alone.
    before = first & (~gives | is_end)
    given_before = np.zeros(len(order), bool)
    given_before[1:] = gives[:-1]
    given_before[first] = before[first]
    told = ~is_end
    unpaired = int((told & gives & given_before).sum() + (told & ~gives & ~given_before).sum())
    unpaired += int((is_end & ~given_before).sum())  # at the end, though it was taken back
    unpaired += int((last & told & gives).sum())  # given, and not there at the end
    kept = np.sort(order[told])
    return Blocks(entry[kept], addr[kept], size[kept], addr[order[before]], size[order[before]], unpaired)


def _pieces(history: Ranges, at_end: Ranges, is_cut: bool) -> tuple[Ints, Addresses, Ints]:
    """The number of the range, address and size of every piece, in order."""
    addr, size = np.concatenate([history.addr, at_end.addr]), np.concatenate([history.size, at_end.size])
    number = np.arange(len(addr), dtype=np.int64)
    ends = addr + size.astype(np.uint64)
    if not is_cut or not len(addr) or (ends < addr).any():
        return number, addr, size
    cuts = np.unique(np.concatenate([addr, ends]))
    begin, end = np.searchsorted(cuts, addr), np.searchsorted(cuts, ends)
    count = end - begin
    if int(count.sum()) > MOST_PIECES:
        return number, addr, size
    entry = np.repeat(number, count)
    place = np.arange(len(entry)) - np.repeat(np.cumsum(count) - count, count) + np.repeat(begin, count)
    return entry, cuts[place], (cuts[place + 1] - cuts[place]).astype(np.int64)
