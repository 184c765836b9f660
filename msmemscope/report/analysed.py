"""A run and what the analyses say about it: what every report starts from.

In: a run, and its folds where they are at hand. Out: `Analysis`. Nothing is written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from msmemscope.analysis import registry
from msmemscope.analysis.analyzer import Judged, tables_of
from msmemscope.analysis.blocks import Folded, Table, Tracked, fold
from msmemscope.analysis.findings import GROWTH
from msmemscope.analysis.options import by_analysis
from msmemscope.analysis.registry import Wanted
from msmemscope.errors import RunError, UsageError
from msmemscope.folds.host_use import HostSeries, host_series
from msmemscope.options.settings import Config
from msmemscope.report.summary import Summary, summarise
from msmemscope.tables.run import Run
from msmemscope.telling import tell as tell_user

Progress = Callable[[str, int, int], None]  # what is being done, done so far, of how many


@dataclass(frozen=True)
class Analysis:
    """What is known about a run before anything is written."""

    run: Run
    tracked: Tracked
    summary: Summary
    judged: tuple[Judged, ...] = ()  # in the order in which they are told
    # MEMSCOPE_LIVE_COLUMNS of the blocks that were alive when the last complete step ended; {} where nothing leaks or
    # grows.
    leaked: Table = field(default_factory=dict)


def analyse(
    run: Run,
    config: Config | Mapping[str, Any] | None = None,
    *,
    only: Sequence[str] = (),
    options: Mapping[str, Any] | None = None,
    folded: Folded | None = None,
    capacity: Mapping[tuple[int, str], int] | None = None,
    host_use: Mapping[int, HostSeries] | None = None,
    progress: Progress | None = None,
    warn: Callable[[str], None] = tell_user,
) -> Analysis:
    """Judges a run: by what its folds say, or where there are none (any more) by its parts. only: names of analyses,
    whatever --analysis said; none: those of the configuration. options: by name those of an analysis. capacity: the
    bytes of devices by ring and name. host_use: samples of host memory by ring. None: as the stored samples say.
    warn: is told what was left out. UsageError for an unknown name."""
    total = sum(process.events for process in run.processes)

    def tell(done: int) -> None:
        if progress is not None:
            progress("following the blocks", done, max(total, done))

    settings = config_of(run, config)
    if only:
        settings = settings.replaced(analysis=tuple(only))
    wanted = Wanted(settings.active_analysis, tuple(only), {**_options_of(settings, warn), **(options or {})})
    registry.check(wanted)
    folded = folded or fold(run, until=registry.step_asked(wanted), progress=tell)
    tracked = folded.tracked(run.processes)
    room = lambda: _by_host(run, capacity if capacity is not None else sampled_capacity(run))  # noqa: E731
    host = lambda: host_use if host_use is not None else host_series(run.usage())  # noqa: E731
    watch_start = settings.watch.start if settings.watch is not None else ""
    tables = replace(tables_of(run, tracked, folded.held, room, host), watch_start=watch_start)
    judged = sorted(registry.judge(tables, wanted, warn), key=lambda one: one.analyzer.order)
    run.load_definitions()  # so that the summary tells what of them cannot be read
    summary = summarise(run, tracked, judged)
    told = summary.leaks or summary.small_leaks or summary.of_kind(GROWTH)
    return Analysis(run, tracked, summary, tuple(judged), tables.alive[0] if told else {})


def _options_of(settings: Config, warn: Callable[[str], None]) -> dict[str, dict[str, str]]:
    """The options of analyses that the run was recorded with, less those that hold no more: the package may be gone."""
    kept = {}
    for name, values in by_analysis(settings.analysis_options).items():
        try:
            registry.check(Wanted((), (), {name: values}))
        except UsageError as error:
            warn(f"Warning: left out: {error}")
        else:
            kept[name] = values
    return kept


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
