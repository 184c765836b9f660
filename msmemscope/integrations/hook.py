"""One function of a framework, and what its run says about what it allocates."""

from __future__ import annotations

from typing import NamedTuple

COMPONENT, PROCESS, DETAIL_1, DETAIL_2 = 1, 2, 3, 4  # levels of record.h

AROUND, OPENS, CLOSES, TAGS = "around", "opens", "closes", "tags"
SNAPSHOT, DUMPS, MARKS, RANGES = "snapshot", "dumps", "marks", "ranges"

Labels = tuple[tuple[int, str], ...]


class Hook(NamedTuple):
    """module, name: where it is, "Class.method" or "function".

    how: `around`: its labels hold while it runs; `opens`: from its run on, until a function of the same map `closes`
    them; `tags`: what it has made when it returns gets addresses' labels, by the function `tag` of `tags.py`;
    `snapshot`: the allocator's counters before and behind it; `dumps`: a snapshot behind it, named like the file that
    it has written, its first argument; `marks`: before it runs, a mark of the name `tag`
    (msmemscope.mark); `ranges`: its run is a range of the name `tag`, and whose its memory is, others say.
    """

    module: str
    name: str
    how: str = AROUND
    labels: Labels = ()
    tag: str = ""


def hooks(module: str, names: str, how: str = AROUND, *labels: tuple[int, str], tag: str = "") -> tuple[Hook, ...]:
    """The same for several names of a module, separated by blanks."""
    return tuple(Hook(module, name, how, labels, tag) for name in names.split())
