"""Which marks there are, for whoever asked for marks of another name.

In: a file of upstream's, or how often each name came. Out: lines of a report.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from msmemscope.imports.imported import Named
from msmemscope.imports.upstream_files import RowFile
from msmemscope.text import counted, plain
from msmemscope.vocabulary import Kind

_NAMES = 12
_LONGEST = 80
_ROWS = 1_000_000  # of a file: their texts are kept


def marks_of(path: Path) -> tuple[Counter[str], bool]:
    """How often each name of a mark comes in a file, and whether that is of its first million rows alone."""
    ids: Counter[int] = Counter()
    texts: dict[int, str] = {}
    rows = 0
    for piece in RowFile(path).pieces():
        is_mark = piece.columns["kind"] == Kind.MARK
        found, counts = np.unique(piece.columns["name"][is_mark], return_counts=True)
        ids.update(dict(zip(found.tolist(), counts.tolist(), strict=True)))
        named = Named(piece.definitions)
        texts |= {one: text for one in found.tolist() if (text := named.text(one))}  # defined where it came first
        rows += len(is_mark)
        if rows >= _ROWS:
            break
    names: Counter[str] = Counter()
    for one, count in ids.items():
        names[texts.get(one, "")] += count
    return names, rows >= _ROWS


def tell_names(names: Mapping[str, int], tell: Callable[[str], None], *, of_first: bool = False) -> None:
    """Those that come most often, of at most a dozen."""
    among = f"in its first {_ROWS:,} rows" if of_first else "there are"
    if not names:
        tell(f"INFO: marks {among}: none")
        return
    most = sorted(names.items(), key=lambda entry: (-entry[1], entry[0]))
    shown = ", ".join(f"{plain(name[:_LONGEST])!r} ({counted(count, 'time')})" for name, count in most[:_NAMES])
    rest = f", and {counted(len(most) - _NAMES, 'more name')}" if len(most) > _NAMES else ""
    tell(f"INFO: marks {among}: {shown}{rest}")
