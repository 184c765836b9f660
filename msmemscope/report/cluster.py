"""The files about the whole job: the tables of findings, cluster/steps.csv, cluster/summary.json, and steps.parquet and
findings.parquet at the root of the run. Columns and units: docs/formats.md.

Every file is made beside its name and then put in place, so that a reader never meets half of one.
"""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from msmemscope.analysis.findings import Finding, Row, device_name, pool_name
from msmemscope.report.summary import Summary, finding_as_json
from msmemscope.text import harmless

if TYPE_CHECKING:
    from msmemscope.analysis.blocks import Tracked

FINDINGS_SCHEMA = pa.schema(
    [
        ("analysis", pa.string()),
        ("kind", pa.string()),
        ("severity", pa.string()),
        ("confidence", pa.float64()),
        ("ranks", pa.list_(pa.int32())),
        ("scope", pa.string()),
        ("device", pa.string()),
        ("pool", pa.string()),
        ("first_step", pa.int64()),
        ("last_step", pa.int64()),
        ("bytes", pa.int64()),
        ("bytes_per_step", pa.float64()),
        ("blocks", pa.int64()),
        ("file", pa.string()),
        ("line", pa.int64()),
        ("function", pa.string()),
        ("owner", pa.string()),
        ("stack", pa.list_(pa.string())),
        ("evidence", pa.string()),
        ("advice", pa.string()),
        ("saving_bytes", pa.int64()),
        ("sentence", pa.string()),
        ("processes", pa.list_(pa.string())),
    ]
)


def write_cluster(run_path: Path, tracked: Tracked, summary: Summary) -> list[Path]:
    """Writes all of them; returns their paths. OSError when the disk is full."""
    cluster = run_path / "cluster"
    cluster.mkdir(mode=0o700, exist_ok=True)
    steps = steps_table(tracked)
    return [
        *(
            write_rows(cluster / f"{name}.csv", columns, [row for one in summary.findings for row in one.rows])
            for name, columns in summary.files.items()
        ),
        write_csv_table(cluster / "steps.csv", steps),
        write_json(cluster / "summary.json", summary.as_json()),
        write_parquet(run_path / "steps.parquet", steps),
        write_parquet(run_path / "findings.parquet", findings_table(summary.findings, summary.found_by)),
    ]


def write_rows(path: Path, columns: Sequence[str], rows: Sequence[Row]) -> Path:
    """A table of findings, by those of the rows that are of this file. Only the header when there is none."""
    with put_in_place(path) as temporary, temporary.open("w", newline="", encoding="utf-8", errors="replace") as file:
        put_rows(file, path.stem, columns, rows)
    return path


def put_rows(file: IO[str], name: str, columns: Sequence[str], rows: Iterable[Row]) -> None:
    """The text of cluster/<name>.csv."""
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(columns)
    for row in rows:
        if row.file == name:
            writer.writerow([_cell(row.cells.get(column, "")) for column in columns])


def steps_table(tracked: Tracked) -> pa.Table:
    """One row per process, device, pool and step, ordered by rank, attempt, process and step."""
    steps = tracked.steps
    process = np.asarray(steps["process"]).astype(np.int64)
    facts = tracked.processes
    ranks = np.array([-1 if p.rank is None else p.rank for p in facts], np.int32)[process]
    attempts = np.array([p.attempt for p in facts], np.int32)[process]
    offsets = np.array([p.wall_offset_ns for p in facts], np.int64)[process]
    start = np.asarray(steps["start_ts"]).astype(np.int64)
    end = np.asarray(steps["end_ts"]).astype(np.int64)
    columns: dict[str, Any] = {
        "rank": pa.array(ranks, mask=ranks < 0),
        "attempt": pa.array(attempts),
        "host": _per_process(process, [p.host for p in facts]),
        "pid": pa.array(np.array([p.pid for p in facts], np.int32)[process]),
        "device": _spread(steps, ("device_type", "device"), device_name),
        "pool": _spread(steps, ("pool", "device_type"), pool_name),
        "step": pa.array(np.asarray(steps["step"]).astype(np.int64)),
        "steps": pa.array(np.asarray(steps["steps"]).astype(np.int64)),
        "complete": pa.array(np.asarray(steps["complete"]).astype(bool)),
        "start_ns": pa.array(start + offsets),
        "duration_ns": pa.array(np.maximum(end - start, 0)),
    }
    for name in ("start", "end", "peak", "min"):
        columns[f"{name}_bytes"] = pa.array(np.asarray(steps[f"{name}_bytes"]).astype(np.int64))
    for name in ("start", "end", "peak"):
        reserved = np.asarray(steps[f"{name}_reserved"]).astype(np.int64)
        columns[f"{name}_reserved_bytes"] = pa.array(reserved, mask=reserved < 0)
    for name in ("allocs", "frees", "alloc_bytes", "freed_bytes"):
        columns[name] = pa.array(np.asarray(steps[name]).astype(np.int64))
    order = np.lexsort((columns["step"].to_numpy(), process, attempts, ranks))
    return pa.table(columns).take(pa.array(order))


def findings_table(findings: Sequence[Finding], found_by: Sequence[str]) -> pa.Table:
    """findings.parquet: every finding, notes included, and its analysis; evidence as JSON text."""
    rows = []
    for finding, analysis in zip(findings, found_by, strict=True):
        row = finding_as_json(finding)
        row["analysis"] = analysis
        row["ranks"] = list(finding.ranks)
        row["evidence"] = json.dumps(_clean(finding.evidence), default=_jsonable, sort_keys=True)
        rows.append(_clean(row))
    return pa.Table.from_pylist(rows, schema=FINDINGS_SCHEMA)


def write_json(path: Path, value: Any) -> Path:
    with put_in_place(path) as temporary:
        text = json.dumps(_clean(value), indent=2, default=_jsonable, ensure_ascii=False)
        temporary.write_text(text + "\n", encoding="utf-8")
    return path


def write_csv_table(path: Path, table: pa.Table) -> Path:
    """A table whose texts are our own words; quoted only where needed, empty for null."""
    options = pa_csv.WriteOptions(include_header=False, quoting_style="needed")
    with put_in_place(path) as temporary, temporary.open("wb") as file:
        file.write((",".join(table.column_names) + "\n").encode())
        if table.num_rows:
            pa_csv.write_csv(table, file, options)
    return path


def write_parquet(path: Path, table: pa.Table) -> Path:
    with put_in_place(path) as temporary:
        pq.write_table(table, temporary, compression="zstd")
    return path


@contextmanager
def put_in_place(path: Path) -> Iterator[Path]:
    """A temporary name (mode 0600) that becomes `path` at the end, or nothing when the body fails."""
    temporary = path.with_name(f".{path.name}.part")
    temporary.unlink(missing_ok=True)
    os.close(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    try:
        yield temporary
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _per_process(process: np.ndarray[Any, Any], texts: list[str]) -> pa.Array:
    return pa.array([harmless(text) for text in texts], pa.string()).take(pa.array(process))


def _spread(steps: Any, names: tuple[str, ...], text_of: Any) -> pa.Array:
    """A text per row, made once per distinct key."""
    keys = np.stack([np.asarray(steps[name]).astype(np.int64) for name in names], axis=1)
    distinct, inverse = np.unique(keys, axis=0, return_inverse=True)
    texts = [text_of(*key) for key in distinct.tolist()]
    return pa.array(texts, pa.string()).take(pa.array(inverse.reshape(-1)))


def _cell(value: str | float) -> str | int:
    if isinstance(value, str):
        return harmless(value)
    return value if isinstance(value, int) else _number(value)


def _number(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else f"{value:.3f}"


def _jsonable(value: Any) -> Any:
    """numpy's numbers inside evidence."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, (np.ndarray, set, frozenset)):
        return list(value)
    return str(value)


def _clean(value: Any) -> Any:
    """Texts without lone surrogates (file names that are no UTF-8), floats without NaN, which JSON does not know."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, (float, np.floating)):
        return float(value) if np.isfinite(value) else None
    if isinstance(value, dict):
        return {_clean(key): _clean(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_clean(entry) for entry in value]
    return value
