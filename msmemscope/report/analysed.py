"""A run and what the analyses say about it: what every report starts from.

In: a run. Out: `Analysis`. Nothing is written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from msmemscope.analysis.blocks import Tracked, track
from msmemscope.analysis.findings import Finding
from msmemscope.analysis.leaks import find_leaks
from msmemscope.collect.settings import Config
from msmemscope.report.summary import Summary, summarise
from msmemscope.tables import Run

Progress = Callable[[str, int, int], None]  # what is being done, done so far, of how many


@dataclass(frozen=True)
class Analysis:
    """What is known about a run before anything is written."""

    run: Run
    tracked: Tracked
    summary: Summary


def analyse(
    run: Run, config: Config | Mapping[str, Any] | None = None, *, progress: Progress | None = None
) -> Analysis:
    """Follows the blocks of a run and looks for leaks, if the configuration has that analysis."""
    total = sum(int(entry.get("events") or 0) for entry in run.info.get("roll_call") or [])

    def tell(done: int) -> None:
        if progress is not None:
            progress("following the blocks", done, max(total, done))

    tracked = track(run, progress=tell)
    findings: Sequence[Finding] = ()
    look = "leaks" in config_of(run, config).active_analysis
    if look:
        findings = find_leaks(tracked, run.stack, capacity=capacity(run))
    return Analysis(run, tracked, summarise(run, tracked, findings, leaks_looked_for=look))


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
