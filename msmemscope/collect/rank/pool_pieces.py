"""The segments and blocks of torch's allocator on one device, as it tells them at a moment.

In: what torch.cuda.memory_snapshot() and torch_npu.npu.memory_snapshot() return, dicts of the allocator's own. Out: the
pieces that _native.snapshot_pieces() writes, a record of 96 bytes each: every segment with its sums, and its blocks as
long as there are at most MOST_BLOCKS, the largest segments first. Torch's CPU allocator has neither.
"""

from __future__ import annotations

from msmemscope.vocabulary import BlockState

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any

    Piece = tuple[bool, int, int, int, int, int, int]

MOST_SEGMENTS = 1 << 14
MOST_BLOCKS = 1 << 15  # 3 MiB of a ring, which has 16 unless it is told otherwise
_STATES = {
    "inactive": BlockState.FREE,
    "active_allocated": BlockState.ALLOCATED,
    "active_awaiting_free": BlockState.PENDING_FREE,
    "active_pending_free": BlockState.PENDING_FREE,
}


def pieces_of(snapshot: Iterable[Mapping[str, Any]], device: int) -> tuple[list[Piece], int]:
    """Of one device: segments with their blocks behind them, and how many segments and blocks were left out.

    A piece: (is a block, address, size, used, total, attr, aux), see SNAPSHOT_SEGMENT and SNAPSHOT_BLOCK in record.h.
    """
    segments = [segment for segment in snapshot if segment.get("device", device) == device]
    segments.sort(key=lambda segment: -int(segment["total_size"]))
    pieces: list[Piece] = []
    blocks_left = MOST_BLOCKS
    left_out = max(len(segments) - MOST_SEGMENTS, 0)
    for segment in segments[:MOST_SEGMENTS]:
        begin = int(segment["address"])
        blocks = _blocks(segment, begin)
        free = max((size for _, size, _, state in blocks if state == BlockState.FREE), default=0)
        used = sum(size for _, size, _, state in blocks if state == BlockState.ALLOCATED)
        stream = int(segment.get("stream") or 0) & 0xFFFF_FFFF_FFFF_FFFF
        pieces.append((False, begin, int(segment["total_size"]), used, free, stream, len(blocks)))
        if len(blocks) > blocks_left:
            left_out += len(blocks)
            continue
        blocks_left -= len(blocks)
        pieces += [(True, at, size, asked, -1, begin, int(state)) for at, size, asked, state in blocks]
    return pieces, left_out


def _blocks(segment: Mapping[str, Any], begin: int) -> list[tuple[int, int, int, BlockState]]:
    """(address, size, bytes asked for or -1, state) of each; older versions of torch tell no addresses."""
    found = []
    at = begin
    for block in segment.get("blocks", ()):
        size = int(block["size"])
        at = int(block.get("address", at))
        state = _STATES.get(block["state"], BlockState.PENDING_FREE)
        asked = int(block.get("requested_size", -1)) if state != BlockState.FREE else 0
        found.append((at, size, asked, state))
        at += size
    return found
