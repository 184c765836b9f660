"""Whose file is it? The rank that a file's name tells.

In: paths, and the ranks that the user gave. Out: a rank for each file; no two files of one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from msmemscope.errors import UsageError

MOST_RANKS = 1 << 20
_NAMED = re.compile(r"rank[_\-.]?(\d{1,7})(?!\d)", re.IGNORECASE)
_LAST_NUMBER = re.compile(r"(?<!\d)(\d{1,7})$")


def ranks_of(paths: Sequence[Path], given: Sequence[int] = ()) -> list[int]:
    """given: one for each path, in their order; () takes them from the names: `rank3`, else a number at the end of the
    name before its first dot (`snapshot_3.pickle.gz`). One file alone without any is rank 0. UsageError names the files
    that have none, or one that another has."""
    if given and len(given) != len(paths):
        raise UsageError(f"--ranks names {len(given)} ranks for {len(paths)} files: one for each, in their order")
    found = list(given) if given else [_from_name(path) for path in paths]
    if len(paths) == 1 and found[0] is None:
        found = [0]
    nameless = [path for path, rank in zip(paths, found, strict=True) if rank is None]
    if nameless:
        raise UsageError(f"{nameless[0]}: its name tells no rank (rank3, snapshot_3.pickle): give them with --ranks")
    ranks = [rank for rank in found if rank is not None]
    first: dict[int, Path] = {}
    for path, rank in zip(paths, ranks, strict=True):
        if rank >= MOST_RANKS:
            raise UsageError(f"{path}: rank {rank} is more than any job has: give the ranks with --ranks")
        if rank in first:
            raise UsageError(f"{first[rank]} and {path} are both of rank {rank}: give one of them, or --ranks")
        first[rank] = path
    return ranks


def _from_name(path: Path) -> int | None:
    named = _NAMED.findall(path.name)
    if named:
        return int(named[-1])
    last = _LAST_NUMBER.search(path.name.split(".")[0])
    return int(last.group(1)) if last else None
