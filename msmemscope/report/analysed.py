"""A run and what the analyses say about it: what every report starts from.

In: a run. Out: `Analysis`. Nothing is written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from msmemscope._kernel import BlockTracker
from msmemscope.analysis.blocks import (
    TRACKER_COLUMNS,
    Table,
    Tracked,
    add_processes,
    event_columns,
    feed,
    rows_by_ring,
    track,
)
from msmemscope.analysis.findings import LEAK, LEAK_CANDIDATE, Finding
from msmemscope.analysis.incidents import Incidents, find_incidents
from msmemscope.analysis.leaks import find_leaks
from msmemscope.analysis.oom import DeviceUse, find_out_of_memory
from msmemscope.analysis.segments import SITE_KEY, Mappings, lay_out, segment_sites
from msmemscope.analysis.step_ends import KINDS as STEP_KINDS
from msmemscope.analysis.step_ends import StepEnds
from msmemscope.analysis.usage import UsageIndex
from msmemscope.collect.settings import Config
from msmemscope.errors import RunError
from msmemscope.report.summary import Summary, summarise
from msmemscope.tables import Run
from msmemscope.vocabulary import Kind

Progress = Callable[[str, int, int], None]  # what is being done, done so far, of how many


@dataclass(frozen=True)
class Analysis:
    """What is known about a run before anything is written."""

    run: Run
    tracked: Tracked
    summary: Summary
    # Columns of Tracked.live, and kernel: blocks that were alive when the last complete step ended.
    leaked: Table
    incidents: Incidents = field(default_factory=Incidents)  # of running out of memory


def analyse(
    run: Run, config: Config | Mapping[str, Any] | None = None, *, progress: Progress | None = None
) -> Analysis:
    """Follows the blocks of a run and looks for leaks, if the configuration has that analysis."""
    total = sum(process.events for process in run.processes)

    def tell(done: int) -> None:
        if progress is not None:
            progress("following the blocks", done, max(total, done))

    tracked = track(run, progress=tell)
    findings: list[Finding] = []
    settings = config_of(run, config)
    look = settings.looks_for_leaks
    leaked = tracked.live
    if look:
        room = capacity(run)
        findings += find_leaks(tracked, run.stack, capacity=room)
        # Without leaks nobody asks for the blocks, and another pass over the events is not for nothing.
        if any(finding.kind in (LEAK, LEAK_CANDIDATE) for finding in findings):
            leaked, mappings = alive_at_last_step(run, tracked)
            leaked["kernel"] = launches_before(run, tracked, leaked)
            sites = segment_sites(leaked, lay_out(leaked, mappings))
            if sites:
                findings = find_leaks(without_sites(tracked, sites), run.stack, capacity=room)
    # That memory ran out is a fact and not a matter of taste: only `--analysis none` does not want to hear of it.
    incidents = find_incidents(run) if settings.active_analysis else Incidents()
    findings += find_out_of_memory(
        tracked,
        run.stack,
        incidents=incidents.found,
        text=run.string,
        use_at=UsageIndex(run).at if incidents.found else _unknown,
        leaks=findings,
    )
    run.load_definitions()  # so that the summary tells what of them cannot be read
    summary = summarise(run, tracked, findings, leaks_looked_for=look, left_out_incidents=incidents.left_out)
    return Analysis(run, tracked, summary, leaked, incidents)


def _unknown(*_: object) -> DeviceUse:
    return DeviceUse()


def without_sites(tracked: Tracked, keys: set[tuple[int, ...]]) -> Tracked:
    """The same, with sites (SITE_KEY) that never held anything: their numbers stay."""
    columns = zip(*(tracked.sites[name].tolist() for name in SITE_KEY), strict=True)
    empty = np.array([key in keys for key in columns], bool)

    def rest(table: Table) -> Table:
        keep = ~empty[table["site"]]
        return {name: column[keep] for name, column in table.items()}

    return replace(tracked, site_steps=rest(tracked.site_steps), survivors=rest(tracked.survivors))


def alive_at_last_step(run: Run, tracked: Tracked) -> tuple[Table, dict[int, Mappings]]:
    """Every block that was alive when its process's last complete step ended, and each process's mappings then.

    What is alive at the very end says little: a program that ends in good order frees what it leaked.
    """
    tracker = BlockTracker(_FEW_POINTS)
    index = add_processes(tracker, run.processes)
    mappings: dict[int, Mappings] = {}
    ends = {number: StepEnds() for number in index.values()}
    ended: set[int] = set()  # processes whose last complete step has ended with its range
    names = (*TRACKER_COLUMNS, "attr", "aux")
    kinds = (Kind.MALLOC, Kind.FREE, Kind.MAP, Kind.UNMAP, *STEP_KINDS)
    for batch in run.events(columns=[*names, "ring"], kinds=kinds):
        columns = event_columns(batch, names)
        for ring, rows in rows_by_ring(batch.column(batch.schema.get_field_index("ring"))):
            process = index.get(ring)
            if process is None or process in ended:
                continue
            last = tracked.last_complete_step.get(process, -1)
            until = columns["step"][rows] <= last
            part = {name: column[rows][until] for name, column in columns.items()}
            fed, at_end = feed(tracker, process, part, ends[process], until=last)
            if at_end:
                ended.add(process)
            mappings.setdefault(process, Mappings()).take({name: column[:fed] for name, column in part.items()})
    return tracker.live(), mappings


def launches_before(run: Run, tracked: Tracked, blocks: Table) -> npt.NDArray[np.int64]:
    """How many kernels each block's process had launched when it was allocated: upstream's kernel_<k>. -1 for all of
    them in a run without any launch, whose launches were not recorded."""
    index = {process.ring: number for number, process in enumerate(tracked.processes)}
    found = np.zeros(len(blocks["ts"]), np.int64)
    any_launch = False
    # Of each process, its blocks in order of time: a launch counts for those that come after it.
    rows_of = {number: np.flatnonzero(blocks["process"] == number) for number in np.unique(blocks["process"]).tolist()}
    rows_of = {number: rows[np.argsort(blocks["ts"][rows], kind="stable")] for number, rows in rows_of.items()}
    for batch in run.events(columns=["ts", "ring"], kinds=(Kind.KERNEL_LAUNCH,)):
        ts = event_columns(batch, ("ts",))["ts"]
        any_launch |= len(ts) > 0
        for ring, part in rows_by_ring(batch.column(batch.schema.get_field_index("ring"))):
            rows = rows_of.get(index.get(ring, -1))
            if rows is not None:
                found[rows] += np.searchsorted(np.sort(ts[part]), blocks["ts"][rows])
    return found if any_launch else np.full_like(found, -1)


_FEW_POINTS = 1_000  # of the levels per site and step, which are not asked for


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


def capacity(run: Run) -> dict[str, int]:
    """Bytes of every device, keyed "<host>/<device>", as the agents' samples say."""
    hosts = {process.ring: process.host for process in run.processes}
    samples = run.usage().select(["ring", "device", "total"])
    found: dict[str, int] = {}
    for sample in samples.group_by(["ring", "device"]).aggregate([("total", "max")]).to_pylist():
        host, total = hosts.get(sample["ring"]), sample["total_max"]
        if host is not None and total and total > 0:
            place = f"{host}/{sample['device']}"
            found[place] = max(int(total), found.get(place, 0))
    return found
