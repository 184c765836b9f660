"""What a fold keeps of a site so that it can be judged: sums, which merge by adding.

Flows in: rows from a fold over the events of one process, in any number of portions. Flows out: `Sums` of all sites of
a process, and `SiteStats` of one site, which is what the judge looks at.

Two tables, both keyed by a site, a number that the fold gives to a call stack in a pool of a process:

    STEP_COLUMNS, key (site, cell). A cell is `stride` steps in a row: cell = step // stride; in short runs a step.
        born_blocks, born_bytes     allocated in these steps
        freed_blocks, freed_bytes   freed in these steps, whenever born
        old_blocks                  of freed_blocks those that were born after the origin and two steps or more before
        gone_blocks, gone_bytes     born in these steps and freed by now, whenever that was
    AGE_COLUMNS, key (site, age_class).
        blocks                      freed at an age of that class; without blocks born at the origin or before

    level (held at the end of a cell)  = sum of born - freed up to it
    alive (survivors by birth)         = born - gone

One free costs O(1). The block, born in step b, is freed in step d; all numbers of steps are those of the process:

    row (site, d // stride): freed_blocks += 1, freed_bytes += size
    row (site, b // stride): gone_blocks += 1, gone_bytes += size
    if b > origin: age row (site, age_class(d - b)) += 1, and row (site, d // stride): old_blocks += (d - b >= 2)

Rules of a fold

* Sparse: rows exist only for cells in which the site had an event, or whose births it lost. A site none of whose blocks
  has outlived its step yet (born and freed in one) may be left out altogether, and its rows begin when the first one
  does; a site judged to be growing has such a block by definition, and what came before decides nothing.
* Deltas: every column is a sum, so a fold may emit at each boundary only what was added since the last one. A row may
  come again and again for the same key; the receiver adds.
* The open step. Rows of steps beyond `last_step`, the last complete one, are not judged: their births are told apart
  (`open_blocks`), for they prove that births go on. Frees in the open step are held back until it is complete, in all
  of the columns: a program frees everything after its last step, and what leaked must still be seen then. With a
  stride above 1 an open step has no rows at all: its cell may have complete steps, too.
* Origin: the step of the process's first event, but WARM_UP at least (steps.py): what it made until the end of that
  step is the start, and evidence of nothing. In the tables it has cells like all others.
* Thinning: when a process has more than MAX_CELLS cells, its stride doubles and pairs of cells are added together: the
  new key is cell // 2. Strides are powers of two, so tables of any two strides merge: the finer one is thinned first.
  Ages stay in steps whatever the stride. The last cell may have fewer complete steps than the others.

Limits. At most MAX_CELLS rows of 72 bytes for a site, and AGE_CLASSES age rows of 24: 75 KiB for the busiest site of a
run of any length. Sums are exact up to 2**63 - 1.

A process without steps is cut into windows of time or of requests: then "step" means the number of the window. Nothing
here cares.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from msmemscope.analysis.steps import WARM_UP

Ints = npt.NDArray[np.int64]
Table = Mapping[str, Ints]

MAX_CELLS = 1024

STEP_KEYS = ("site", "cell")
STEP_SUMS = ("born_blocks", "born_bytes", "freed_blocks", "freed_bytes", "old_blocks", "gone_blocks", "gone_bytes")
AGE_KEYS = ("site", "age_class")
AGE_SUMS = ("blocks",)
STEP_COLUMNS = STEP_KEYS + STEP_SUMS
AGE_COLUMNS = AGE_KEYS + AGE_SUMS

_EXACT_AGES = 32  # a class each
AGE_CLASSES = 96
"""Single steps below 32, then four classes of one width for each doubling; the last has no upper end."""
OLD_AGE = 2
"""Steps: the age from which on a death says something. A block handed from one step to the next reaches age 1."""


def age_class(age: int) -> int:
    """The class of an age in steps; bit operations only, as the fold does it."""
    if age < _EXACT_AGES:
        return max(age, 0)
    octave = age.bit_length() - 1  # at least 5
    return min(_EXACT_AGES + 4 * (octave - 5) + ((age >> (octave - 2)) & 3), AGE_CLASSES - 1)


def _age_edges() -> Ints:
    coarse = [(4 + quarter) << (octave - 2) for octave in range(5, 21) for quarter in range(4)]
    return np.array([*range(_EXACT_AGES), *coarse], np.int64)


AGE_EDGES = _age_edges()
"""The lowest age of every class: 0, 1, ... 31, 32, 40, 48, 56, 64, 80, ..."""


@dataclass(frozen=True)
class SiteStats:
    """One site of one process, dense. Arrays by place: place 0 is the start, places 1..S are the cells after it, up to
    that of the last complete step."""

    born_blocks: Ints
    born_bytes: Ints
    freed_blocks: Ints
    freed_bytes: Ints
    old_blocks: Ints
    gone_blocks: Ints
    gone_bytes: Ints
    ages: Ints
    """Deaths by age class, shape (AGE_CLASSES,)."""
    open_blocks: int = 0
    """Births in steps that are not complete, in none of the columns above."""
    open_bytes: int = 0
    stride: int = 1
    """Steps in a place."""
    first_cell: int = 0
    """The cell of place 0."""

    def step_of(self, place: int) -> int:
        """The first step in a place, as the process counts."""
        return (self.first_cell + place) * self.stride

    @cached_property
    def level_blocks(self) -> Ints:
        """Held at the end of each place."""
        return np.cumsum(self.born_blocks - self.freed_blocks)

    @cached_property
    def level_bytes(self) -> Ints:
        """Held at the end of each place."""
        return np.cumsum(self.born_bytes - self.freed_bytes)

    @cached_property
    def alive_blocks(self) -> Ints:
        """Survivors by place of birth."""
        return self.born_blocks - self.gone_blocks

    @cached_property
    def alive_bytes(self) -> Ints:
        """Survivors by place of birth."""
        return self.born_bytes - self.gone_bytes


@dataclass(frozen=True)
class Sums:
    """All sites of one process. Rows are sorted by their keys, one for each."""

    steps: Table
    ages: Table
    last_step: int
    """The last complete one, -1 for none."""
    origin: int = WARM_UP
    stride: int = 1

    @cached_property
    def sites(self) -> Ints:
        """Every site that has a row, ascending."""
        return np.unique(self.steps["site"])

    @property
    def places(self) -> int:
        """Of the dense arrays: the start and the cells after it; 0 as long as not even the start is over."""
        return self._cell(self.last_step) + 1 if self.last_step >= self.origin else 0

    def site(self, site: int) -> SiteStats:
        """The dense arrays of a site; ValueError before the first step is complete."""
        length = self.places
        if not length:
            raise ValueError(f"no step is complete: the last is {self.last_step}, the first {self.origin}")
        rows = slice(*np.searchsorted(self.steps["site"], (site, site + 1)))
        places = self._place(self.steps["cell"][rows])
        inside = places < length

        def dense(name: str) -> Ints:
            values = np.zeros(length, np.int64)
            np.add.at(values, places[inside], self.steps[name][rows][inside])
            return values

        of_ages = slice(*np.searchsorted(self.ages["site"], (site, site + 1)))
        ages = np.zeros(AGE_CLASSES, np.int64)
        np.add.at(ages, self.ages["age_class"][of_ages], self.ages["blocks"][of_ages])
        return SiteStats(
            **{name: dense(name) for name in STEP_SUMS},
            ages=ages,
            open_blocks=int(self.steps["born_blocks"][rows][~inside].sum()),
            open_bytes=int(self.steps["born_bytes"][rows][~inside].sum()),
            stride=self.stride,
            first_cell=self.origin // self.stride,
        )

    def levels(self, sites: Ints) -> Ints:
        """Bytes held at the end of every place, shape (sites, places); `sites` ascending. 8 bytes per element."""
        levels = np.zeros((len(sites), self.places), np.int64)
        places = self._place(self.steps["cell"])
        row = np.searchsorted(sites, self.steps["site"])
        wanted = (row < len(sites)) & (places < self.places)
        wanted[wanted] = sites[row[wanted]] == self.steps["site"][wanted]
        change = self.steps["born_bytes"] - self.steps["freed_bytes"]
        np.add.at(levels, (row[wanted], places[wanted]), change[wanted])
        return np.cumsum(levels, axis=1, out=levels)

    def thinned(self, stride: int) -> Sums:
        """On cells of `stride` steps, a multiple of its own stride."""
        if stride % self.stride:
            raise ValueError(f"cells of {self.stride} steps cannot be cut into cells of {stride}")
        known = self.steps["cell"] * self.stride <= self.last_step if stride > self.stride else slice(None)
        rows = {name: column[known] for name, column in self.steps.items()}
        rows["cell"] = rows["cell"] // (stride // self.stride)
        steps = _added([rows], STEP_KEYS, STEP_SUMS)
        return Sums(steps, self.ages, self.last_step, self.origin, stride)

    def _cell(self, step: int) -> int:
        return step // self.stride - self.origin // self.stride

    def _place(self, cells: Ints) -> Ints:
        return np.maximum(cells - self.origin // self.stride, 0)


def make_sums(steps: Table, ages: Table, *, last_step: int, origin: int = WARM_UP, stride: int = 1) -> Sums:
    """Sums from rows in any order, of which several may have one key; thinned where there are too many cells."""
    sums = Sums(
        _added([steps], STEP_KEYS, STEP_SUMS),
        _added([ages], AGE_KEYS, AGE_SUMS),
        last_step,
        max(origin, WARM_UP),
        stride,
    )
    return _bounded(sums)


def merge(parts: Sequence[Sums]) -> Sums:
    """The sums of parts of one process; associative and commutative. ValueError for none, or for different origins."""
    if len({part.origin for part in parts}) != 1:
        raise ValueError("sums merge only for one process, from the same first step on")
    stride = max(part.stride for part in parts)
    alike = [part.thinned(stride) for part in parts]
    sums = Sums(
        steps=_added([part.steps for part in alike], STEP_KEYS, STEP_SUMS),
        ages=_added([part.ages for part in alike], AGE_KEYS, AGE_SUMS),
        last_step=max(part.last_step for part in parts),
        origin=parts[0].origin,
        stride=stride,
    )
    return _bounded(sums)


def _bounded(sums: Sums) -> Sums:
    stride = sums.stride
    while sums.last_step // stride - sums.origin // stride >= MAX_CELLS:
        stride *= 2
    return sums if stride == sums.stride else sums.thinned(stride)


def _added(tables: Sequence[Table], keys: tuple[str, str], sums: tuple[str, ...]) -> Table:
    """The rows of all tables, sorted by their keys; rows of one key become their sum."""
    columns = {name: np.concatenate([np.asarray(t[name], np.int64) for t in tables]) for name in (*keys, *sums)}
    order = np.lexsort((columns[keys[1]], columns[keys[0]]))
    columns = {name: column[order] for name, column in columns.items()}
    if not len(order):
        return columns
    new = np.ones(len(order), bool)
    new[1:] = (np.diff(columns[keys[0]]) != 0) | (np.diff(columns[keys[1]]) != 0)
    first = np.flatnonzero(new)
    return {name: column[first] if name in keys else np.add.reduceat(column, first) for name, column in columns.items()}
