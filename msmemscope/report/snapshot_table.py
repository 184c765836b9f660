"""The table of snapshots: per name, process and device what the latest of them found in the pool.

In: an analysed run. Out: a section for console and summary.txt. The largest hole is of the largest free block in any
segment: a larger request needs memory from the driver, whatever else of the reserved bytes is free.
"""

from __future__ import annotations

from collections.abc import Iterator

from msmemscope.analysis.findings import device_name, format_bytes, pool_name
from msmemscope.folds.snapshots import PoolSnapshot
from msmemscope.report.analysed import Analysis
from msmemscope.report.sections import Only, Section

_ROWS = 32
_HEADER = ("snapshot", "of", "device", "pool", "taken", "allocated", "reserved", "largest hole", "split and free")


def snapshot_table(analysis: Analysis, only: Only) -> Iterator[Section]:
    """Nothing where no snapshots were taken."""
    tracked = analysis.tracked
    rows = []
    for subject in tracked.subjects:
        if only is not None and subject not in only:
            continue
        who = subject.label
        for member in subject.members:
            rows += [_row(analysis, who, one) for one in tracked.snapshots.get(member, ())]
    if not rows:
        return
    yield Section(header=_HEADER, rows=tuple(rows[:_ROWS]))
    left = len(rows) - _ROWS
    if left > 0:
        yield Section(
            lines=(f"  ... {left} more rows: `msmemscope summary` with --rank or --pid shows fewer processes",)
        )
    if tracked.left_out_snapshots:
        names = f"{tracked.left_out_snapshots:,} snapshots of further names: they stand in events/"
        yield Section(lines=(f"  ... and {names}",))


def _row(analysis: Analysis, who: str, one: PoolSnapshot) -> tuple[str, ...]:
    return (
        analysis.run.string(one.name),
        who,
        device_name(one.device_type, one.device),
        pool_name(one.pool, one.device_type),
        f"{one.taken:,}",
        format_bytes(one.allocated),
        format_bytes(one.reserved),
        format_bytes(one.largest_free) if one.segments else "-",
        format_bytes(one.split_free) if one.segments else "-",
    )
