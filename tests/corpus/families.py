"""Programs whose truth is known: one call stack's blocks as births and deaths, clean or leaking.

Flows in: a family's name, the length of a run, a seed. Flows out: a `Case` (the blocks and the truth), and from it the
`SiteStats` that a judge sees. The judge never sees single blocks.

A step `s` is 1..S; step 0 is the program's start. A block born in step `b` and freed in step `d` is held at the end of
the steps b..d-1; `d > S` means alive at the end. Same seed, same case, on every machine.
"""

from __future__ import annotations

import heapq
import zlib
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from msmemscope.analysis.verdict.sums import (
    AGE_CLASSES,
    AGE_EDGES,
    OLD_AGE,
    STEP_SUMS,
    SiteStats,
    Sums,
    make_sums,
)

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Random = np.random.Generator

NEVER = np.int64(1) << 40
LENGTHS = (12, 20, 24, 40, 100, 400, 2000)
MIB = 1 << 20


@dataclass(frozen=True)
class Case:
    """Blocks of one site, all arrays of shape (blocks,)."""

    steps: int
    birth: Ints
    """Step of birth, 0..steps."""
    death: Ints
    """Step of death, >= birth; > steps: alive."""
    size: Ints
    """Bytes."""
    leaked: npt.NDArray[np.bool_]
    """Never freed, and more and more of them: the truth."""
    counts: bool = True
    """False where the blocks alone cannot tell yet: a container that has not dropped its first block, a leak of fewer
    than 12 leaking steps (4 epochs for a rhythm by epochs)."""

    @property
    def is_leak(self) -> bool:
        return bool(self.leaked.any())


def statistics(case: Case) -> SiteStats:
    """What a native fold would have kept of the site."""
    steps = case.steps
    length = steps + 1

    def by_step(at: Ints, weights: Ints | None = None) -> Ints:
        return np.bincount(at, weights=weights, minlength=length).astype(np.int64)

    dead = case.death <= steps
    born, born_bytes = by_step(case.birth), by_step(case.birth, case.size)
    counted = dead & (case.birth > 0)
    age = (case.death - case.birth)[counted]
    return SiteStats(
        born_blocks=born,
        born_bytes=born_bytes,
        freed_blocks=by_step(case.death[dead]),
        freed_bytes=by_step(case.death[dead], case.size[dead]),
        gone_blocks=by_step(case.birth[dead]),
        gone_bytes=by_step(case.birth[dead], case.size[dead]),
        old_blocks=by_step(case.death[counted][age >= 2]),
        ages=np.bincount(np.searchsorted(AGE_EDGES, age, "right") - 1, minlength=AGE_CLASSES),
    )


def sums(case: Case, stride: int = 1) -> Sums:
    """The same as tables of a process, with the case as its site 0; step s of the case is step s + 1 of the process."""
    birth, death = (at + (at > 0) for at in (case.birth, np.minimum(case.death, case.steps + 1)))
    dead = case.death <= case.steps
    counted = dead & (case.birth > 0)
    one, nothing = np.ones_like(birth), np.zeros_like(birth)
    born = {"cell": birth // stride, "born_blocks": one, "born_bytes": case.size}
    gone = {"cell": birth[dead] // stride, "gone_blocks": one[dead], "gone_bytes": case.size[dead]}
    freed = {"cell": death[dead] // stride, "freed_blocks": one[dead], "freed_bytes": case.size[dead]}
    freed["old_blocks"] = (counted & (case.death - case.birth >= OLD_AGE))[dead].astype(np.int64)
    rows = {
        name: np.concatenate([part.get(name, nothing[: len(part["cell"])]) for part in (born, gone, freed)])
        for name in ("site", "cell", *STEP_SUMS)
    }
    age = (case.death - case.birth)[counted]
    ages = {
        "site": nothing[counted],
        "age_class": np.searchsorted(AGE_EDGES, age, "right") - 1,
        "blocks": one[counted],
    }
    return make_sums(rows, ages, last_step=case.steps + 1, stride=stride)


def until(case: Case, step: int) -> Case:
    """What was known of the case at the end of `step`."""
    seen = case.birth <= step
    return Case(step, case.birth[seen], case.death[seen], case.size[seen], case.leaked[seen], case.counts)


# --- parts ---------------------------------------------------------------------------------------------------------


def _case(steps: int, birth: Any, death: Any, size: Any = 4096, leaked: Any = False, counts: bool = True) -> Case:
    at = np.asarray(birth, np.int64)

    def full(value: Any, kind: type) -> npt.NDArray[Any]:
        return np.broadcast_to(np.asarray(value, kind), at.shape).copy()

    return Case(steps, at, full(death, np.int64), full(size, np.int64), full(leaked, bool), counts)


def _join(*cases: Case) -> Case:
    return Case(
        cases[0].steps,
        np.concatenate([c.birth for c in cases]),
        np.concatenate([c.death for c in cases]),
        np.concatenate([c.size for c in cases]),
        np.concatenate([c.leaked for c in cases]),
        all(c.counts for c in cases),
    )


def _births(rng: Random, steps: int) -> Ints:
    """Births of a site that allocates all the time: regular or Poisson, rare or many."""
    rate = float(rng.choice([0.5, 1, 1, 2, 4, 8]))
    regular = rate >= 1 and rng.random() < 0.5
    per_step = np.full(steps, int(rate)) if regular else rng.poisson(rate, steps)
    return np.repeat(np.arange(1, steps + 1), per_step)


def _temps(rng: Random, steps: int, per_step: int) -> Case:
    """Blocks that go in the step of their birth or in the next one."""
    birth = np.repeat(np.arange(1, steps + 1), per_step)
    age = np.full(len(birth), int(rng.integers(2)))
    return _case(steps, birth, birth + age)


def _start(rng: Random, steps: int) -> Case:
    """Blocks of the program's start, on half of the sites."""
    count = int(rng.choice([0, 0, 1, 20]))
    return _case(steps, np.zeros(count), NEVER)


def temps_and_long_lives(rng: Random, steps: int) -> Case:
    """Nine of ten blocks go at once, the others have random lives with a mean of one or two runs."""
    birth = _births(rng, steps)
    life = rng.exponential(float(rng.choice([1, 2])) * steps, len(birth))
    death = np.floor(birth + rng.random(len(birth)) + life).astype(np.int64)
    return _join(_case(steps, birth, death), _temps(rng, steps, 9))


def groups(mean: float) -> Callable[[Random, int], Case]:
    """Eight blocks at a time that live and die together."""

    def make(rng: Random, steps: int) -> Case:
        birth = _births(rng, steps)
        life = rng.exponential(mean * steps, len(birth))
        death = np.floor(birth + rng.random(len(birth)) + life).astype(np.int64)
        return _case(steps, np.repeat(birth, 8), np.repeat(death, 8), _size(rng))

    return make


def _zipf(keys: int, exponent: float) -> Floats:
    weight: Floats = np.arange(1, keys + 1, dtype=np.float64) ** -exponent
    weight /= weight.sum()
    return weight


def _size(rng: Random) -> int:
    return int(rng.choice([512, 4096, 65536, MIB, 4 * MIB]))


# --- clean families ------------------------------------------------------------------------------------------------


def random_lives(law: str, mean: float) -> Callable[[Random, int], Case]:
    """Lives drawn from `law` with a mean of `mean` runs."""

    def draw(rng: Random, count: int, scale: float) -> Floats:
        if law == "exponential":
            return rng.exponential(scale, count)
        if law == "uniform":
            return rng.uniform(0, 2 * scale, count)
        if law == "weibull":  # shape 0.5: mean = 2 scale
            return scale / 2 * rng.weibull(0.5, count)
        return rng.lognormal(np.log(scale) - 1.5**2 / 2, 1.5, count)

    def make(rng: Random, steps: int) -> Case:
        birth = _births(rng, steps)
        life = draw(rng, len(birth), mean * steps)
        death = np.floor(birth + rng.random(len(birth)) + life).astype(np.int64)
        return _join(_start(rng, steps), _case(steps, birth, death, _size(rng)))

    return make


def fifo(reached: float) -> Callable[[Random, int], Case]:
    """deque(maxlen): full after `reached` of the run (> 1: never)."""

    def make(rng: Random, steps: int) -> Case:
        per_step = int(rng.choice([1, 1, 2, 4]))
        bound = max(1, round(reached * steps)) * per_step
        birth = np.repeat(np.arange(1, steps + 1), per_step)
        return _join(_bounded(steps, birth, bound, _size(rng)), _temps(rng, steps, int(rng.choice([0, 0, 1, 4]))))

    return make


def just_full(container: Callable[..., Case]) -> Callable[[Random, int], Case]:
    """A container that dropped its first block in the last 7 % of the run: the hardest moment."""
    return lambda rng, steps: container(rng, steps, 0.93, 1.0)


def fifo_random(rng: Random, steps: int) -> Case:
    """A deque with entries at random steps."""
    birth = np.repeat(np.arange(1, steps + 1), rng.poisson(rng.choice([0.5, 1, 3]), steps))
    bound = max(1, int(rng.uniform(0.2, 0.95) * len(birth)))
    return _bounded(steps, birth, bound, _size(rng))


def _bounded(steps: int, birth: Ints, bound: int, size: int) -> Case:
    """The block that came `bound` blocks later pushes a block out."""
    death = np.full(len(birth), NEVER)
    if len(birth) > bound:
        death[: len(birth) - bound] = birth[bound:]
    return _case(steps, birth, death, size, counts=bool((death <= steps).any()))


def ring_buffer(rng: Random, steps: int) -> Case:
    """Slots written one after the other, at each step with a chance; a write frees what the slot held."""
    writes = np.flatnonzero(rng.random(steps) < rng.choice([0.3, 0.7, 1.0])) + 1
    return _bounded(steps, writes, max(1, int(rng.uniform(0.1, 0.95) * len(writes))), _size(rng))


def lru(rng: Random, steps: int, low: float = 0.2, high: float = 0.95) -> Case:
    """LRU cache, Zipf keys, full after 20 to 95 % of the run."""
    per_step = int(rng.choice([1, 2, 4, 8]))
    weight = _zipf(int(rng.choice([500, 2000, 5000])), float(rng.choice([0.8, 1.0, 1.2])))
    keys = rng.choice(len(weight), steps * per_step, p=weight)
    seen = len(np.unique(keys[: max(1, int(rng.uniform(low, high) * len(keys)))]))
    held: OrderedDict[int, int] = OrderedDict()
    birth: list[int] = []
    death: list[int] = []
    for turn, key in enumerate(keys.tolist()):
        step = turn // per_step + 1
        if key in held:
            held.move_to_end(key)
            continue
        if len(held) >= seen:
            death[held.popitem(last=False)[1]] = step
        held[key] = len(birth)
        birth.append(step)
        death.append(int(NEVER))
    return _case(steps, birth, death, _size(rng), counts=min(death) <= steps)


def container(bound: int, after: int, rng: Random, zipf: bool) -> Case:
    """A deque or LRU cache of `bound` blocks, one look-up a step, `after` steps after it dropped its first block."""
    if not zipf:
        steps = bound + 1 + after
        return _bounded(steps, np.arange(1, steps + 1), bound, 4096)
    keys = rng.choice(5000, 40 * bound + after, p=_zipf(5000, 1.0))
    held: OrderedDict[int, int] = OrderedDict()
    birth: list[int] = []
    death: list[int] = []
    full = 0
    for step, key in enumerate(keys.tolist(), 1):
        if key in held:
            held.move_to_end(key)
        else:
            if len(held) >= bound:
                death[held.popitem(last=False)[1]] = step
                full = full or step
            held[key] = len(birth)
            birth.append(step)
            death.append(int(NEVER))
        if full and step == full + after:
            break
    return _case(step, birth, death)


def best_of(rng: Random, steps: int, low: float = 0.2, high: float = 0.95) -> Case:
    """A bounded heap that keeps the best k of all, full after 20 to 95 % of the run."""
    per_step = int(rng.choice([1, 2, 4]))
    total = steps * per_step
    room = max(1, int(rng.uniform(low, high) * total))
    birth = np.repeat(np.arange(1, steps + 1), per_step)
    death = np.full(total, NEVER)
    heap: list[tuple[float, int]] = []
    for at, value in enumerate(rng.random(total).tolist()):
        out = None
        if len(heap) < room:
            heapq.heappush(heap, (value, at))
        else:
            out = heapq.heappushpop(heap, (value, at))
        if out is not None:
            death[out[1]] = birth[at]
    return _case(steps, birth, death, _size(rng), counts=bool((death <= steps).any()))


def random_replacement(rng: Random, steps: int, low: float = 0.2, high: float = 0.95) -> Case:
    """A replay buffer that overwrites a random entry once it is full (after 20 to 95 % of the run)."""
    per_step = int(rng.choice([1, 2, 4]))
    total = steps * per_step
    room = max(1, int(rng.uniform(low, high) * total))
    birth = np.repeat(np.arange(1, steps + 1), per_step)
    death = np.full(total, NEVER)
    slot = list(range(room))
    for at in range(room, total):
        victim = int(rng.integers(room))
        death[slot[victim]] = birth[at]
        slot[victim] = at
    return _case(steps, birth, death, _size(rng), counts=total > room)


def shape_cache(shapes: int, law: str) -> Callable[[Random, int], Case]:
    """A buffer per shape, kept for ever; every shape has its own size."""

    def make(rng: Random, steps: int) -> Case:
        weight = _zipf(shapes, 1.0) if law == "zipf" else np.full(shapes, 1 / shapes)
        per_step = int(rng.choice([1, 1, 2]))
        keys = rng.choice(shapes, steps * per_step, p=weight)
        first = np.sort(np.unique(keys, return_index=True)[1])
        sizes = rng.permutation(np.arange(1, 4 * shapes + 1))[:shapes] * 512
        return _case(steps, first // per_step + 1, NEVER, sizes[keys[first]])

    return make


def grid_cache(rng: Random, steps: int) -> Case:
    """A buffer per shape of two dimensions, 8 x 64, kept for ever: several shapes have one size."""
    per_step = int(rng.choice([1, 1, 2]))
    keys = rng.choice(8 * 64, steps * per_step)
    first = np.sort(np.unique(keys, return_index=True)[1])
    sizes = (keys[first] // 64 + 1) * (keys[first] % 64 + 1) * 512
    return _case(steps, first // per_step + 1, NEVER, sizes)


def memo(rng: Random, steps: int) -> Case:
    """A cache without a bound, 2 to 8 look-ups a step, Zipf keys, values of one size."""
    per_step = int(rng.choice([2, 4, 8]))
    weight = _zipf(int(rng.choice([500, 2000])), float(rng.choice([1.0, 1.2])))
    keys = rng.choice(len(weight), steps * per_step, p=weight)
    first = np.sort(np.unique(keys, return_index=True)[1])
    return _case(steps, first // per_step + 1, NEVER, _size(rng))


def memo_setdefault(rng: Random, steps: int) -> Case:
    """The same, but a value is made at every look-up and dropped if the key is known."""
    per_step = int(rng.choice([2, 4, 8]))
    weight = _zipf(int(rng.choice([500, 2000])), float(rng.choice([1.0, 1.2])))
    keys = rng.choice(len(weight), steps * per_step, p=weight)
    birth = np.arange(len(keys)) // per_step + 1
    new = np.zeros(len(keys), bool)
    new[np.unique(keys, return_index=True)[1]] = True
    return _case(steps, birth, np.where(new, NEVER, birth), _size(rng))


def memo_single(rng: Random, steps: int) -> Case:
    """One look-up a step, values of one size: in short runs often the very same blocks as a constant leak."""
    law = rng.integers(3)
    weight = (_zipf(2000, 1.0), np.full(64, 1 / 64), np.full(512, 1 / 512))[law]
    keys = rng.choice(len(weight), steps, p=weight)
    return _case(steps, np.sort(np.unique(keys, return_index=True)[1]) + 1, NEVER, _size(rng), counts=False)


def warm_up(rng: Random, steps: int) -> Case:
    """One block more per step for 10 to 60 % of the run, then none."""
    until = max(2, int(rng.uniform(0.1, 0.6) * steps))
    return _join(
        _case(steps, np.arange(1, until + 1), NEVER, _size(rng)), _temps(rng, steps, int(rng.choice([0, 1, 8])))
    )


def optimizer_state(rng: Random, steps: int) -> Case:
    """Many blocks at step 1 or 2 for ever, and temporary ones."""
    count = int(rng.choice([2, 60, 400]))
    return _join(
        _case(steps, np.full(count, int(rng.integers(1, 3))), NEVER, _size(rng)),
        _temps(rng, steps, int(rng.choice([1, 4]))),
    )


def ema(rng: Random, steps: int) -> Case:
    """Copies replaced every k steps."""
    every, copies = int(rng.choice([1, 2, 5])), int(rng.choice([1, 10]))
    start = np.arange(int(rng.integers(1, 4)), steps + 1, every)
    return _case(steps, np.repeat(start, copies), np.repeat(start + every, copies), _size(rng))


def checkpoints(rng: Random, steps: int) -> Case:
    """Every k steps a copy; the last 1 to 3 are kept."""
    every, keep = int(rng.choice([2, 3, 5, 10])), int(rng.integers(1, 4))
    return _bounded(steps, np.arange(every, steps + 1, every), keep, _size(rng))


def sawtooth(rng: Random, steps: int) -> Case:
    """A list, cleared every k steps."""
    every = int(rng.integers(3, max(4, steps // 2)))
    birth = np.repeat(np.arange(1, steps + 1), int(rng.choice([1, 3])))
    return _case(steps, birth, (birth // every + 1) * every, _size(rng))


def evaluation(rng: Random, steps: int) -> Case:
    """At the end of each epoch outputs are collected, joined and freed."""
    epoch = int(rng.integers(5, max(6, steps // 2)))
    of_epoch = int(rng.integers(2, 5))
    starts = np.arange(epoch, steps + 1, epoch)
    birth = (starts[:, None] - np.arange(of_epoch)[None, :]).ravel()
    return _case(
        steps, np.sort(np.maximum(birth, 1)), np.sort(np.repeat(starts, of_epoch)) + int(rng.integers(2)), _size(rng)
    )


def growing_tensor(rng: Random, steps: int) -> Case:
    """history = cat([history, x]): one block, replaced by a larger one."""
    birth = np.arange(1, steps + 1)
    return _case(steps, birth, birth + 1, birth * _size(rng))


def curriculum(rng: Random, steps: int) -> Case:
    """Inputs get longer on purpose, in stages."""
    stage = (np.arange(steps) * int(rng.choice([3, 6])) // steps + 1) * _size(rng)
    birth = np.arange(1, steps + 1)
    return _case(steps, birth, birth + int(rng.choice([1, 2])), stage)


def collector(rng: Random, steps: int) -> Case:
    """Cycles that wait for the garbage collector, which comes every 10 to 50 steps."""
    every = int(rng.integers(10, 51))
    phase = int(rng.integers(every))
    birth = np.repeat(np.arange(1, steps + 1), int(rng.choice([1, 1, 5])))
    death = ((birth + phase) // every + 1) * every - phase
    return _case(steps, birth, death, _size(rng), counts=bool((death <= steps).any()))


def random_sizes(rng: Random, steps: int) -> Case:
    """Blocks of any size that live up to 3 steps."""
    birth = _births(rng, steps)
    return _case(steps, birth, birth + rng.integers(0, 4, len(birth)), rng.integers(1, 4096, len(birth)) * 512)


def _churn(rng: Random, steps: int, size: int) -> Case:
    """Poisson births with short random lives: 2 to 8 % of the run."""
    birth = np.repeat(np.arange(1, steps + 1), rng.poisson(float(rng.choice([1, 3, 8])), steps))
    life = rng.exponential(rng.uniform(0.02, 0.08) * steps, len(birth))
    return _case(steps, birth, np.floor(birth + rng.random(len(birth)) + life).astype(np.int64), size)


def fifo_beside_churn(rng: Random, steps: int) -> Case:
    """A deque that is full after 20 to 95 % of the run, at a site that also makes short-lived blocks."""
    size = _size(rng)
    bound = max(1, round(rng.uniform(0.2, 0.95) * steps))
    return _join(_bounded(steps, np.arange(1, steps + 1), bound, size), _churn(rng, steps, size))


def long_lives_beside_churn(mean: float) -> Callable[[Random, int], Case]:
    """A block per step with a long random life, at a site that also makes short-lived blocks."""

    def make(rng: Random, steps: int) -> Case:
        birth = np.arange(1, steps + 1)
        death = np.floor(birth + rng.random(steps) + rng.exponential(mean * steps, steps)).astype(np.int64)
        size = _size(rng)
        return _join(_case(steps, birth, death, size), _churn(rng, steps, size))

    return make


def two_lists(rng: Random, steps: int) -> Case:
    """One list cleared every 3 to 6 steps, one every 20 to 45 % of the run."""
    size, birth = _size(rng), np.arange(1, steps + 1)
    short, long = int(rng.integers(3, 7)), max(3, int(rng.uniform(0.2, 0.45) * steps))
    lists = (_case(steps, birth, (birth // every + 1) * every, size) for every in (short, long))
    return _join(*lists)


def queue(rng: Random, steps: int) -> Case:
    """A consumer that is slower than the producer: the oldest are freed, more are made. Growth, but no leak."""
    per_step = int(rng.choice([1, 2, 4]))
    birth = np.repeat(np.arange(1, steps + 1), per_step)
    taken = np.cumsum(rng.random(steps) < rng.uniform(0.3, 0.8), dtype=np.int64) * per_step
    death = np.searchsorted(taken, np.arange(len(birth)), "right") + 1
    late = death > steps
    return _case(steps, birth, np.where(late, NEVER, np.maximum(death, birth)), _size(rng))


def epoch_lives(mean: float) -> Callable[[Random, int], Case]:
    """A block at the end of each epoch, with a random life."""

    def make(rng: Random, steps: int) -> Case:
        count, length = _epochs(rng, steps)
        birth = np.arange(1, count + 1) * length
        death = np.floor(birth + rng.random(count) + rng.exponential(mean * steps, count)).astype(np.int64)
        return _case(steps, birth, death, _size(rng))

    return make


# --- leaks ---------------------------------------------------------------------------------------------------------


def _leak(rng: Random, steps: int, birth: Any, size: Any = None, least: int = 12) -> Case:
    at = np.asarray(birth, np.int64)
    return _case(steps, at, NEVER, _size(rng) if size is None else size, True, len(np.unique(at)) >= least)


def constant(rng: Random, steps: int) -> Case:
    """Every step the same number of blocks."""
    birth = np.repeat(np.arange(1, steps + 1), int(rng.choice([1, 1, 2, 4])))
    return _join(_start(rng, steps), _leak(rng, steps, birth))


def constant_random_sizes(rng: Random, steps: int) -> Case:
    """Every step a block, its size that of one of 4 to 200 lengths."""
    return _leak(rng, steps, np.arange(1, steps + 1), rng.integers(1, int(rng.choice([4, 20, 200])) + 1, steps) * 4096)


def constant_own_sizes(rng: Random, steps: int) -> Case:
    """Every step a block, and never one of a size that was there before."""
    return _leak(rng, steps, np.arange(1, steps + 1), (rng.permutation(4 * steps)[:steps] + 1) * 512)


def share(of: int, kept: int) -> Callable[[Random, int], Case]:
    """`kept` of `of` births of each step are never freed, the others in the same or in the next step."""

    def make(rng: Random, steps: int) -> Case:
        size = _size(rng)
        leak = _leak(rng, steps, np.repeat(np.arange(1, steps + 1), kept), size)
        return _join(leak, _temps(rng, steps, of - kept))

    return make


def share_binomial(of: int, chance: float) -> Callable[[Random, int], Case]:
    """Each of `of` births of a step is kept with a chance."""

    def make(rng: Random, steps: int) -> Case:
        birth = np.repeat(np.arange(1, steps + 1), of)
        kept = rng.random(len(birth)) < chance
        leak = _leak(rng, steps, birth[kept])
        return _join(leak, _case(steps, birth[~kept], birth[~kept] + int(rng.integers(2))))

    return make


def every_k(rng: Random, steps: int) -> Case:
    """A block every 2, 5 or 10 steps."""
    every = int(rng.choice([k for k in (2, 5, 10) if steps >= 6 * k]))
    return _join(_leak(rng, steps, np.arange(every, steps + 1, every)), _temps(rng, steps, int(rng.choice([0, 2]))))


def from_step(rng: Random, steps: int) -> Case:
    """The leak begins after 20 to 60 % of the run; before it the site has temporary blocks."""
    begin = int(rng.uniform(0.2, 0.6) * steps)
    return _join(_leak(rng, steps, np.arange(begin, steps + 1)), _temps(rng, steps, int(rng.choice([0, 1, 3]))))


def _epochs(rng: Random, steps: int) -> tuple[int, int]:
    """(epochs, steps of an epoch): 4 to 12 epochs of 10 to 50 steps where that fits, more epochs in longer runs."""
    lengths = [n for n in range(10, 51) if steps // n >= 4 and (steps // n <= 12 or steps > 600)]
    length = int(rng.choice(lengths))
    return steps // length, length


def epoch(rng: Random, steps: int) -> Case:
    """At the end of each epoch some blocks at once; the run ends up to half an epoch later."""
    count, length = _epochs(rng, steps)
    ends = np.arange(1, count + 1) * length - int(rng.integers(0, length // 2))
    return _join(
        _leak(rng, steps, np.repeat(ends, int(rng.choice([1, 8]))), None, 4),
        _temps(rng, steps, int(rng.choice([0, 1]))),
    )


def epoch_evaluation(rng: Random, steps: int) -> Case:
    """At the end of each epoch 3 to 8 steps that keep a block each."""
    count, length = _epochs(rng, steps)
    last = np.arange(1, count + 1) * length
    birth = np.sort((last[:, None] - np.arange(int(rng.integers(3, 9)))[None, :]).ravel())
    return _leak(rng, steps, birth, None, 12)


def random_steps(rng: Random, steps: int) -> Case:
    """A block at a step with a chance of 0.3."""
    return _leak(rng, steps, np.flatnonzero(rng.random(steps) < 0.3) + 1)


def growing(rng: Random, steps: int) -> Case:
    """The leak itself grows: by number or by size."""
    at = np.arange(1, steps + 1)
    if rng.random() < 0.5:
        return _leak(rng, steps, np.repeat(at, 1 + at * 4 // steps))
    return _leak(rng, steps, at, at * 4096)


def churn(law: str) -> Callable[[Random, int], Case]:
    """One or two blocks per step leak from a site whose other blocks have random lives, 2 to 8 % of the run."""

    def make(rng: Random, steps: int) -> Case:
        birth = np.repeat(np.arange(1, steps + 1), rng.poisson(float(rng.choice([1, 3, 8])), steps))
        mean = rng.uniform(0.02, 0.08) * steps
        life = (
            rng.exponential(mean, len(birth))
            if law == "exponential"
            else rng.lognormal(np.log(mean) - 0.5, 1.0, len(birth))
        )
        size = _size(rng)
        leak = _leak(rng, steps, np.repeat(np.arange(1, steps + 1), int(rng.choice([1, 2]))), size)
        return _join(leak, _case(steps, birth, np.floor(birth + rng.random(len(birth)) + life).astype(np.int64), size))

    return make


def leak_beside_fifo(rng: Random, steps: int) -> Case:
    """A deque of a tenth of the run and a leak at the same site."""
    size = _size(rng)
    return _join(
        _leak(rng, steps, np.arange(1, steps + 1), size),
        _bounded(steps, np.arange(1, steps + 1), max(1, steps // 10), size),
    )


def leak_beside_sawtooth(rng: Random, steps: int) -> Case:
    """A list cleared every 3 to 6 steps and a leak at the same site."""
    every = int(rng.integers(3, 7))
    birth = np.arange(1, steps + 1)
    size = _size(rng)
    return _join(_leak(rng, steps, birth, size), _case(steps, birth, (birth // every + 1) * every, size))


def bursts(rng: Random, steps: int) -> Case:
    """At a tenth of the steps, by chance, 1 to 6 blocks."""
    at = np.flatnonzero(rng.random(steps) < 0.1) + 1
    return _leak(rng, steps, np.repeat(at, rng.integers(1, 7, len(at))))


@dataclass(frozen=True)
class Family:
    """How to make the cases of one kind."""

    name: str
    make: Callable[[Random, int], Case]
    least: int = 12
    """Shortest run that makes sense."""


def _clean() -> list[Family]:
    laws = ("exponential", "weibull", "uniform", "lognormal")
    found = [Family(f"{law} lives, mean {m} run", random_lives(law, m)) for law in laws for m in (0.1, 0.5, 1, 2)]
    found += [Family(f"fifo full at {int(100 * f)} %", fifo(f)) for f in (0.2, 0.5, 0.8, 0.95)]
    found += [Family(f"groups of 8, exponential lives, mean {m} run", groups(m)) for m in (0.5, 1, 2)]
    found += [Family("temps_and_long_lives", temps_and_long_lives)]
    found += [Family("fifo never full (undecidable)", fifo(1.5))]
    found += [Family(f.__name__, f) for f in (fifo_random, ring_buffer, lru, best_of, random_replacement)]
    found += [Family(f"{f.__name__}, just full", just_full(f)) for f in (lru, best_of, random_replacement)]
    found += [Family(f"{n} shapes, {law}", shape_cache(n, law)) for n in (8, 64, 512) for law in ("uniform", "zipf")]
    found += [Family("8 x 64 shapes, uniform", grid_cache)]
    found += [Family(f"{n} shapes, uniform (undecidable)", shape_cache(n, "uniform")) for n in (2048, 20000)]
    found += [Family(f.__name__, f) for f in (memo, memo_setdefault)]
    found += [Family("memo_single (undecidable when short)", memo_single)]
    rest = (
        warm_up,
        optimizer_state,
        ema,
        checkpoints,
        sawtooth,
        evaluation,
        growing_tensor,
        curriculum,
        collector,
        random_sizes,
    )
    found += [Family(f.__name__, f) for f in rest]
    found += [Family(f.__name__, f) for f in (fifo_beside_churn, two_lists, queue)]
    found += [Family(f"long lives beside churn, mean {m} run", long_lives_beside_churn(m)) for m in (0.5, 1, 2)]
    return found + [Family(f"a block an epoch, mean life {m} run", epoch_lives(m), 40) for m in (0.5, 1, 2)]


def _leaking() -> list[Family]:
    return [
        Family("constant", constant),
        Family("constant, random sizes", constant_random_sizes),
        Family("constant, sizes of their own", constant_own_sizes),
        Family("share 0.5 (1 of 2)", share(2, 1)),
        Family("share 0.1 (1 of 10)", share(10, 1)),
        Family("share 0.01 (1 of 100)", share(100, 1)),
        Family("tiny share (1 of 300)", share(300, 1)),
        Family("share 0.5 by chance of 8", share_binomial(8, 0.5)),
        Family("share 0.1 by chance of 20", share_binomial(20, 0.1)),
        Family("every k steps", every_k),
        Family("from step s on", from_step),
        Family("epoch", epoch, 40),
        Family("epoch, evaluation steps", epoch_evaluation, 40),
        Family("random steps, 0.3", random_steps),
        Family("growing", growing),
        Family("churn, exponential", churn("exponential")),
        Family("churn, lognormal", churn("lognormal")),
        Family("beside a deque", leak_beside_fifo),
        Family("beside a sawtooth", leak_beside_sawtooth),
        Family("bursts", bursts),
    ]


CLEAN = _clean()
LEAKS = _leaking()


def cases(family: Family, steps: int, count: int, seed: int) -> list[Case]:
    """`count` cases; the stream of random numbers depends on family, length and seed alone."""
    rng = np.random.default_rng([seed, steps, zlib.crc32(family.name.encode())])
    return [family.make(rng, steps) for _ in range(count)]
