"""What the bytes of a card are, for one process at the end of a step.

In: levels and owners of the process's pools, the blocks that were alive, a sample of the card. Out: a `Ledger`:

    card                        used of the card, as the driver says
      other processes           of it what is not this process's
      process                   as the driver says; where it does not, what was recorded
        CANN@HCCL, ...          memory from the driver, by the part of CANN that asked; less what pools have of it
          hccl_world_group, ... of HCCL, by the communicator that it serves
        PTA, PTA_WORKSPACE, ... what a pool has from the driver, as it says itself
          allocated             by its blocks, and whose they are
          unseen                given out before recording began, as the pool's own count says
          fragmented            free in segments that hold a block: they cannot go back to the driver
          cached                free in whole segments: torch.npu.empty_cache() would give them back
        residual                of the process what is none of these

At the end of the last complete step the blocks themselves are known: what the driver takes in whole pages, and in which
segment every block lies. Of an earlier step only sums are: pages count to the residual, and what is free in a pool is
one entry.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from msmemscope.analysis.findings import device_name, format_bytes, pool_name
from msmemscope.analysis.ledger_entries import OTHERS, RESIDUAL, Entry, Ledger, Mismatch, Path
from msmemscope.analysis.owner_paths import bytes_by_text, path_text
from msmemscope.analysis.owners import OTHER, UNATTRIBUTED, label_texts, owner_levels, owner_of
from msmemscope.analysis.sample_age import Since
from msmemscope.folds.segments import DRIVER_POOLS, Mappings, lay_out, of_process, whole_pages
from msmemscope.vocabulary import DeviceType, Pool

if TYPE_CHECKING:
    from collections.abc import Callable

    from msmemscope.analysis.blocks import OwnerTables, Table
    from msmemscope.analysis.usage import DeviceUse

CARD, PROCESS = "card", "process"
ALLOCATED, UNSEEN, FRAGMENTED, CACHED, FREE = "allocated", "unseen", "fragmented", "cached", "free"
_POOLS_MODULE = "CANN@APP"  # aclrtMalloc of a program: what pools take their segments with


@dataclass(frozen=True)
class PoolLevel:
    """Of one pool at the end of a step. reserved: -1 unknown. unseen, missing: of what the pool itself says it has
    given out, what it gave before recording began, and what no block is known of (below 0: of how many too many)."""

    pool: int
    allocated: int
    reserved: int
    unseen: int = 0
    missing: int = 0


@dataclass(frozen=True)
class Alive:
    """The blocks of one process at that time (MEMSCOPE_LIVE_COLUMNS)."""

    blocks: Table
    mappings: Mappings


def card_ledger(
    process: int,
    place: tuple[int, int],
    step: int,
    pools: Mapping[int, PoolLevel],
    owners: OwnerTables,
    alive: Alive | None,
    use: DeviceUse,
    text: Callable[[int], str],
    since: Since,
) -> Ledger:
    """place: device type and index. pools: those of the device, by number. alive: None where only sums are known. text:
    of a string id. since: what was recorded since the sample."""
    mismatches: list[Mismatch] = []
    of_owners = {pool: _by_owner(owners, place, level, step, text, mismatches) for pool, level in pools.items()}
    here = _Here(place, pools, alive)
    mismatches += [*here.mismatches, *miscounted(pools)]
    driver = here.driver() if here.is_known else _driver_by_sums(pools, of_owners)
    entries = list(_pool_entries(pools, of_owners, here))
    reserved = sum(entry.bytes or 0 for entry in entries if len(entry.path) == 3)
    if driver:
        outside = driver.get(_POOLS_MODULE, 0) if Pool.HAL in pools else sum(driver.values())
        name = _POOLS_MODULE if Pool.HAL in pools else pool_name(Pool.CUDA_DRIVER)
        modules = ({**driver} if Pool.HAL in pools else {}) | {name: outside - reserved}
        less = "a pool has segments that were not seen" if outside < reserved else ""
        named = _named(of_owners.get(Pool.HAL, {}))
        of_modules: list[Entry] = []
        for module, size in sorted(modules.items(), key=lambda one: (-one[1], one[0])):
            if size:
                of_modules.append(Entry((CARD, PROCESS, module), size, less if module == name else ""))
                of_modules += _within(of_modules[-1], named.get(module, {}))
        entries = [*of_modules, *entries]
    recorded = sum(entry.bytes or 0 for entry in entries if len(entry.path) == 3)
    held = use.process_used
    whole = Entry((CARD, PROCESS), recorded if held is None else held, "as recorded" if held is None else "")
    rest: list[Entry] = []
    if held is not None:
        remark = "" if driver else "the driver's own memory was not recorded"
        if driver and not since.is_nothing:
            came = " to ".join(map(format_bytes, sorted({since.least, since.most})))
            remark = f"{came} came since the card was sampled"
        rest = [Entry((CARD, PROCESS, RESIDUAL), held - recorded, remark)]
    others = None if use.used is None else use.used - (whole.bytes or 0)
    remark = "and what of this one was not recorded" if held is None else ""
    return Ledger(
        process,
        device_name(*place),
        step,
        use.total,
        (Entry((CARD,), use.used), Entry((CARD, OTHERS), others, remark), whole, *entries, *rest),
        tuple(mismatches),
        bool(driver),
        since,
    )


def miscounted(pools: Mapping[int, PoolLevel]) -> Iterator[Mismatch]:
    """Pools whose own count is another than that of their blocks."""
    for pool, level in sorted(pools.items()):
        if level.missing:
            yield Mismatch(f"the blocks of {pool_name(pool)} and its own count", -level.missing)


class _Here:
    """The blocks of one device, where they are known."""

    def __init__(self, place: tuple[int, int], pools: Mapping[int, PoolLevel], alive: Alive | None) -> None:
        self.is_known = alive is not None
        self.mismatches: list[Mismatch] = []
        if alive is None:
            return
        blocks = alive.blocks
        here = (blocks["device_type"] == place[0]) & (blocks["device"] == place[1])
        self.live = of_process(0, {name: column[here] for name, column in blocks.items()})
        layout = lay_out(self.live, {0: alive.mappings})
        self.segments = layout.segments
        for pool, level in pools.items():
            held = int(self.live["size"][self.live["pool"] == pool].sum())
            if held != level.allocated:
                self.mismatches.append(Mismatch(f"blocks of {pool_name(pool)}", held - level.allocated))

    def driver(self) -> dict[str, int]:
        """Bytes from the driver in whole pages, by who asked."""
        found: dict[str, int] = defaultdict(int)
        live = self.live
        for pool in DRIVER_POOLS:
            mine = live["pool"] == pool
            sizes = live["size"][mine]
            taken = whole_pages(sizes, live["attr"][mine]) if pool == Pool.HAL else sizes
            for word, size in zip(live["attr"][mine].tolist(), taken.tolist(), strict=True):
                found[owner_of(pool, DeviceType.NPU, word) or pool_name(pool)] += size
        return dict(found)

    def fragmented(self, pool: int) -> int | None:
        """Free bytes in segments that hold blocks of the pool; None where no segment of it was seen."""
        if not self.is_known:
            return None
        mine = self.segments["pool"] == pool
        return int((self.segments["size"][mine] - self.segments["used_bytes"][mine]).sum()) if mine.any() else None


def _driver_by_sums(pools: Mapping[int, PoolLevel], of_owners: Mapping[int, Mapping[Path, int]]) -> dict[str, int]:
    found: dict[str, int] = defaultdict(int)
    for pool in DRIVER_POOLS:
        if pool not in pools:
            continue
        by_module = of_owners.get(pool) or {}
        for path, size in by_module.items():
            found[path[0]] += size
        if not by_module and pools[pool].allocated:
            found[pool_name(pool)] += pools[pool].allocated
    return dict(found)


def _named(of_driver: Mapping[Path, int]) -> dict[str, dict[str, int]]:
    """By part of CANN what its bytes are for, where it is known. What the program took is divided by nobody: pools have
    most of it."""
    found: dict[str, dict[Path, int]] = defaultdict(dict)
    for (module, *names), size in of_driver.items():
        if names and module != _POOLS_MODULE:
            found[module][tuple(names)] = size
    return {module: bytes_by_text(sizes) for module, sizes in found.items()}


def _within(whole: Entry, named: Mapping[str, int]) -> Iterator[Entry]:
    """The parts of a part of CANN, if any is known."""
    if not named:
        return
    for name, size in sorted(named.items(), key=lambda one: (-one[1], one[0])):
        yield Entry((*whole.path, name), size)
    if rest := (whole.bytes or 0) - sum(named.values()):
        yield Entry((*whole.path, UNATTRIBUTED), rest)


def _pool_entries(
    pools: Mapping[int, PoolLevel], of_owners: Mapping[int, Mapping[Path, int]], here: _Here
) -> Iterator[Entry]:
    for pool, level in sorted(pools.items(), key=lambda one: (-max(one[1].reserved, one[1].allocated), one[0])):
        if pool in DRIVER_POOLS:
            continue
        path: Path = (CARD, PROCESS, pool_name(pool))
        knows = level.reserved >= 0
        yield Entry(path, level.reserved if knows else level.allocated, "" if knows else "what is allocated of it")
        yield Entry((*path, ALLOCATED), level.allocated)
        by_text: dict[str, int] = defaultdict(int)
        for owner, size in of_owners[pool].items():
            by_text[path_text(owner[1:]) or UNATTRIBUTED] += size
        for text, size in sorted(by_text.items(), key=lambda one: (-one[1], one[0])):
            yield Entry((*path, ALLOCATED, text), size)
        if level.unseen:
            yield Entry((*path, UNSEEN), level.unseen, "given out before recording began")
        if not knows:
            continue
        free = level.reserved - level.allocated - level.unseen
        fragmented = here.fragmented(pool)
        remark = "more is allocated than reserved" if free < 0 else ""
        if fragmented is None:
            yield Entry((*path, FREE), free, remark)
        else:
            yield Entry((*path, FRAGMENTED), fragmented)
            yield Entry((*path, CACHED), free - fragmented, remark)


def _by_owner(
    owners: OwnerTables,
    place: tuple[int, int],
    level: PoolLevel,
    step: int,
    text: Callable[[int], str],
    mismatches: list[Mismatch],
) -> dict[Path, int]:
    """Bytes by root and owner below it; {} where they are not known of that step. What does not add up is noted."""
    sums = owners.sums
    mine = (sums["device_type"] == place[0]) & (sums["device"] == place[1]) & (sums["pool"] == level.pool)
    steps = sums["step"][mine] if step < 0 else sums["step"][mine & (sums["step"] <= step)]
    if not len(steps):
        return {}
    latest = int(steps.max())
    rows = np.flatnonzero(mine & (sums["step"] == latest))
    off = int(sums["end_bytes"][rows].sum()) - level.allocated
    if off:
        if step in (-1, latest):  # else that step's rows were thinned out
            mismatches.append(Mismatch(f"owners of {pool_name(level.pool)}", off))
        return {}
    texts = owner_levels(owners.owners)
    found: dict[Path, int] = defaultdict(int)
    for owner, size in zip(sums["owner"][rows].tolist(), sums["end_bytes"][rows].tolist(), strict=True):
        if not size:
            continue
        root, labels = texts.get(owner, (OTHER, ()))
        path: Path = (root, *(name for name in label_texts(labels, text) if name != "ops"))
        found[path] += size
    return dict(found)
