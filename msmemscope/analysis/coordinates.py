"""Where ranks stand in the parallel layout of their job, as their frameworks have said (collect/rank/coordinates.py).

In: Process.parallel, "tp=0/2,pp=1/4": the rank's place in each group and the group's size. Out: `Coordinates`; groups
of ranks that do the same work; and what a few ranks of a group have in common and no other has.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from msmemscope.analysis.subjects import name_of

if TYPE_CHECKING:
    from msmemscope.analysis.blocks import Tracked
    from msmemscope.analysis.subjects import Subject

Coordinates = Mapping[str, tuple[int, int]]
"""Name of a group -> the rank's place in it, from 0, and its size."""

STAGE = "pp"
EXPERT = "ep"
_ONE = re.compile(r"([a-z][a-z0-9_]{0,31})=(\d{1,7})/([1-9]\d{0,6})")


def read_coordinates(text: str) -> dict[str, tuple[int, int]]:
    """{} where it says nothing, or nothing that can be understood."""
    found: dict[str, tuple[int, int]] = {}
    for part in text.split(",") if text else ():
        match = _ONE.fullmatch(part)
        if match is None or int(match[2]) >= int(match[3]):
            return {}
        found[match[1]] = int(match[2]), int(match[3])
    return found


def by_coordinates(tracked: Tracked, ranks: Sequence[Subject]) -> dict[tuple[object, ...], list[Subject]] | None:
    """Ranks of one program with the same groups and in the same stage of the pipeline; by that stage, if there is more
    than one, last in the key. None where not every rank has said where it stands."""
    groups: dict[tuple[object, ...], list[Subject]] = {}
    for one in ranks:
        process = tracked.processes[one.main]
        at = {name: place for name, place in read_coordinates(process.parallel).items() if place[1] > 1}
        if not read_coordinates(process.parallel):
            return None
        sizes = tuple(sorted((name, size) for name, (_, size) in at.items()))
        groups.setdefault((name_of(process), process.role, sizes, at.get(STAGE, (0, 1))[0]), []).append(one)
    return groups


def only_theirs(tracked: Tracked, members: Sequence[int], others: Sequence[int]) -> list[str]:
    """Coordinates that all these processes have and none of the others: ["ep=3"]."""
    mine = [read_coordinates(tracked.processes[number].parallel) for number in members]
    theirs = [read_coordinates(tracked.processes[number].parallel) for number in others]
    if not mine or not all(mine) or not theirs or not all(theirs):
        return []
    return [
        f"{name}={place}"
        for name, (place, size) in mine[0].items()
        if size > 1
        and all(one.get(name, (-1, 0))[0] == place for one in mine)
        and not any(one.get(name, (-1, 0))[0] == place for one in theirs)
    ]
