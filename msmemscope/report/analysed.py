"""A run and what the analyses say about it: what every report starts from.

In: a run. Out: `Analysis`. Nothing is written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from msmemscope._kernel import BlockTracker
from msmemscope.analysis.blocks import (
    TRACKER_COLUMNS,
    Table,
    Tracked,
    add_processes,
    event_columns,
    rows_by_ring,
    track,
)
from msmemscope.analysis.findings import Finding
from msmemscope.analysis.incidents import Incidents, find_incidents
from msmemscope.analysis.leaks import find_leaks
from msmemscope.analysis.oom import DeviceUse, find_out_of_memory
from msmemscope.analysis.usage import UsageIndex
from msmemscope.collect.settings import Config
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
    leaked: Table  # columns of Tracked.live: blocks that were alive when the last complete step ended
    incidents: Incidents = field(default_factory=Incidents)  # of running out of memory


def analyse(
    run: Run, config: Config | Mapping[str, Any] | None = None, *, progress: Progress | None = None
) -> Analysis:
    """Follows the blocks of a run and looks for leaks, if the configuration has that analysis."""
    total = sum(int(entry.get("events") or 0) for entry in run.info.get("roll_call") or [])

    def tell(done: int) -> None:
        if progress is not None:
            progress("following the blocks", done, max(total, done))

    tracked = track(run, progress=tell)
    findings: list[Finding] = []
    active = config_of(run, config).active_analysis
    look = "leaks" in active
    if look:
        findings += find_leaks(tracked, run.stack, capacity=capacity(run))
    # That memory ran out is a fact and not a matter of taste: only `--analysis none` does not want to hear of it.
    incidents = find_incidents(run) if active else Incidents()
    findings += find_out_of_memory(
        tracked,
        run.stack,
        incidents=incidents.found,
        text=run.string,
        use_at=UsageIndex(run).at if incidents.found else _unknown,
        leaks=findings,
    )
    summary = summarise(run, tracked, findings, leaks_looked_for=look, left_out_incidents=incidents.left_out)
    # Without leaks nobody asks for the blocks, and another pass over the events is not for nothing.
    leaked = alive_at_last_step(run, tracked) if summary.leaks else tracked.live
    return Analysis(run, tracked, summary, leaked, incidents)


def _unknown(*_: object) -> DeviceUse:
    return DeviceUse()


def alive_at_last_step(run: Run, tracked: Tracked) -> Table:
    """Every block that was alive when its process's last complete step ended.

    What is alive at the very end says little: a program that ends in good order frees what it leaked.
    """
    tracker = BlockTracker(_FEW_POINTS)
    index = add_processes(tracker, run.processes)
    for batch in run.events(columns=[*TRACKER_COLUMNS, "ring"], kinds=(Kind.MALLOC, Kind.FREE)):
        columns = event_columns(batch)
        for ring, rows in rows_by_ring(batch.column(batch.schema.get_field_index("ring"))):
            process = index.get(ring)
            if process is None:
                continue
            until = columns["step"][rows] <= tracked.last_complete_step.get(process, -1)
            part = {name: column[rows][until] for name, column in columns.items()}
            tracker.feed(process, len(part["kind"]), part)
    return tracker.live()


_FEW_POINTS = 1_000  # of the levels per site and step, which are not asked for


def config_of(run: Run, config: Config | Mapping[str, Any] | None = None) -> Config:
    """The given configuration, or the one the run was recorded under, or the defaults."""
    if isinstance(config, Config):
        return config
    recorded = config if config is not None else run.info.get("config")
    return Config.from_dict(recorded) if isinstance(recorded, Mapping) else Config()


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
