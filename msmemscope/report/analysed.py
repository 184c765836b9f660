"""A run and what the analyses say about it: what every report starts from.

In: a run, and its folds where they are at hand. Out: `Analysis`. Nothing is written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from msmemscope.analysis.blocks import Folded, Table, Tracked, fold
from msmemscope.analysis.findings import LEAK, LEAK_CANDIDATE, Finding
from msmemscope.analysis.leaks import find_leaks
from msmemscope.analysis.oom import DeviceUse, find_out_of_memory
from msmemscope.analysis.usage import UsageIndex
from msmemscope.collect.settings import Config
from msmemscope.errors import RunError
from msmemscope.folds.incidents import Incident
from msmemscope.folds.ring_tables import HeldBlocks
from msmemscope.folds.segments import SITE_KEY, Mappings, lay_out, segment_sites
from msmemscope.report.summary import Summary, summarise
from msmemscope.tables import Run

Progress = Callable[[str, int, int], None]  # what is being done, done so far, of how many


@dataclass(frozen=True)
class Analysis:
    """What is known about a run before anything is written."""

    run: Run
    tracked: Tracked
    summary: Summary
    # MEMSCOPE_LIVE_COLUMNS of the blocks that were alive when the last complete step ended; {} where none leaks.
    leaked: Table
    incidents: tuple[Incident, ...] = ()  # of running out of memory


def analyse(
    run: Run,
    config: Config | Mapping[str, Any] | None = None,
    *,
    folded: Folded | None = None,
    capacity: Mapping[tuple[int, str], int] | None = None,
    progress: Progress | None = None,
) -> Analysis:
    """Judges a run: by what its folds say, or where there are none (any more) by its parts. capacity: the bytes of
    devices by ring and name; None: as the stored samples say."""
    total = sum(process.events for process in run.processes)

    def tell(done: int) -> None:
        if progress is not None:
            progress("following the blocks", done, max(total, done))

    folded = folded or fold(run, progress=tell)
    tracked = folded.tracked(run.processes)
    findings: list[Finding] = []
    settings = config_of(run, config)
    look = settings.looks_for_leaks
    leaked: Table = {}
    if look:
        room = _by_host(run, capacity if capacity is not None else sampled_capacity(run))
        findings += find_leaks(tracked, run.stack, capacity=room)
        if any(finding.kind in (LEAK, LEAK_CANDIDATE) for finding in findings):
            leaked, mappings = alive_at_last_step(tracked, folded.held)
            sites = segment_sites(leaked, lay_out(leaked, mappings))
            if sites:
                findings = find_leaks(without_sites(tracked, sites), run.stack, capacity=room)
    # That memory ran out is a fact and not a matter of taste: only `--analysis none` does not want to hear of it.
    incidents = tracked.incidents if settings.active_analysis else ()
    findings += find_out_of_memory(
        tracked,
        run.stack,
        incidents=incidents,
        text=run.string,
        use_at=UsageIndex(run).at if incidents else _unknown,
        leaks=findings,
    )
    run.load_definitions()  # so that the summary tells what of them cannot be read
    summary = summarise(
        run,
        tracked,
        findings,
        leaks_looked_for=look,
        left_out_incidents=tracked.left_out_incidents if settings.active_analysis else 0,
    )
    return Analysis(run, tracked, summary, leaked, incidents)


def _unknown(*_: object) -> DeviceUse:
    return DeviceUse()


def without_sites(tracked: Tracked, keys: set[tuple[int, ...]]) -> Tracked:
    """The same, with sites (SITE_KEY) that never held anything: their numbers stay."""
    columns = zip(*(tracked.sites[name].tolist() for name in SITE_KEY), strict=True)
    empty = np.array([key in keys for key in columns], bool)

    process = np.asarray(tracked.sites["process"])
    sums = {
        number: replace(one, rows={name: column[keep] for name, column in one.rows.items()})
        for number, one in tracked.sums.items()
        for keep in [~empty[process == number][one.rows["site"]]]
    }
    return replace(tracked, sums=sums)


def alive_at_last_step(tracked: Tracked, held: Callable[[int], HeldBlocks | None]) -> tuple[Table, dict[int, Mappings]]:
    """Every block that was alive when its process's last complete step ended, and each process's mappings then.

    What is alive at the very end says little: a program that ends in good order frees what it leaked.
    """
    pieces: list[Table] = []
    mappings: dict[int, Mappings] = {}
    for number, process in enumerate(tracked.processes):
        found = held(process.ring)
        if found is None:
            continue
        blocks = found.at_last_step(tracked.reached.get(number, 0))
        pieces.append(blocks | {"process": np.full(len(blocks["ptr"]), number, np.uint32)})
        mappings[number] = found.mappings
    if not pieces:
        return {}, {}
    return {name: np.concatenate([piece[name] for piece in pieces]) for name in pieces[0]}, mappings


def config_of(run: Run, config: Config | Mapping[str, Any] | None = None) -> Config:
    """The given configuration, or the one the run was recorded under, or the defaults."""
    if isinstance(config, Config):
        return config
    recorded = config if config is not None else run.info.get("config")
    if not isinstance(recorded, Mapping):
        return Config()
    try:
        return Config.from_dict(recorded)
    except ValueError as error:
        raise RunError(f"{run.path}: run.json holds a configuration that is none: {error}") from None


def sampled_capacity(run: Run) -> dict[tuple[int, str], int]:
    """Bytes of every device, by ring and name, as the agents' samples say."""
    samples = run.usage().select(["ring", "device", "total"])
    totals = samples.group_by(["ring", "device"]).aggregate([("total", "max")]).to_pylist()
    return {(one["ring"], one["device"]): int(one["total_max"]) for one in totals if one["total_max"]}


def _by_host(run: Run, capacity: Mapping[tuple[int, str], int]) -> dict[str, int]:
    """The same by "<host>/<device>"."""
    hosts = {process.ring: process.host for process in run.processes}
    found: dict[str, int] = {}
    for (ring, device), total in capacity.items():
        if ring in hosts and total > 0:
            place = f"{hosts[ring]}/{device}"
            found[place] = max(total, found.get(place, 0))
    return found
