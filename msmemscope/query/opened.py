"""`msmemscope.open_run()`: what a run holds, as Arrow tables.

In: a run directory and filters. Out: `pyarrow.Table`s of what is small, `pyarrow.RecordBatchReader`s of blocks and
events, which are read a piece at a time. Derived files (findings, steps, cluster/) are read where they are there; where
they are not, as while a run is recorded, the run is judged once, in memory.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from msmemscope.analysis import registry
from msmemscope.analysis.compare import COMPARE, CompareOptions, each_with_first
from msmemscope.analysis.compare_words import COLUMNS as COMPARED
from msmemscope.analysis.compare_words import rows as compared_rows
from msmemscope.analysis.findings import Row, fold_ranks
from msmemscope.analysis.owner_paths import beginning_of_those_below, below_first, first_level, path_text
from msmemscope.analysis.owners import UNATTRIBUTED
from msmemscope.errors import RunError, UsageError
from msmemscope.query.rows import Readable
from msmemscope.report.analysed import Analysis, analyse, config_of
from msmemscope.report.block_table import BLOCK_SCHEMA
from msmemscope.report.cluster import FINDINGS_SCHEMA, findings_table, put_rows, steps_table
from msmemscope.report.comparison import NAMES, compare_read, read_run
from msmemscope.report.summary import Summary
from msmemscope.tables.parts import Bad
from msmemscope.tables.run import Run
from msmemscope.tables.run_files import inspect
from msmemscope.tables.schema import EVENT_SCHEMA
from msmemscope.vocabulary import DeviceType, Kind, Pool

_PROCESS_FIELDS = {
    **dict.fromkeys(("rank", "world_size", "attempt", "pid"), pa.int64()),
    **dict.fromkeys(("host", "program", "command", "role"), pa.string()),
    **dict.fromkeys(("ring", "parent_ring"), pa.uint64()),
    **dict.fromkeys(("created_ns", "ended_ns", "wall_offset_ns", "ended_by", "events"), pa.int64()),
}
# Of a csv: texts even where every cell looks like a number.
_TEXTS = ("ranks", "host", "scope", "device", "pool", "file", "function", "owner", "kind", "when", "process")
_MOST_COLUMNS = 256  # DuckDB takes minutes over thousands


def open_run(path: str | os.PathLike[str]) -> OpenedRun:
    """A recorded run for looking into: `open_run("memscopeDumpResults/run_20260101120000_a1b2c3").leaks()`.

    Raises RunError for a directory that is no run.
    """
    return OpenedRun(Path(path))


class OpenedRun:
    """What a run holds, as Arrow tables: `.to_pandas()` makes DataFrames of them, `polars.from_arrow()` takes them.
    Made by open_run(). Sizes are bytes, times ns. Methods raise UsageError for a wrong filter or column, RunError for
    what cannot be read."""

    def __init__(self, path: Path) -> None:
        if path.is_dir():
            inspect(path, to_write=False)
        self._run = Run(path)
        self.path = path

    @property
    def info(self) -> dict[str, Any]:
        """run.json."""
        return self._run.info

    @property
    def ranks(self) -> list[int]:
        """Those that recorded something."""
        return self._run.ranks

    # --- what analyses found ----------------------------------------------------------------------------------

    def findings(self, analysis: str = "", *, rank: int | None = None) -> pa.Table:
        """Every finding, notes (severity info) included, worst first. analysis: of that one alone, by its name; the run
        is judged anew by one that it was not recorded with. rank: those that are about it. `evidence` is JSON."""
        table = None
        if analysis and not registry.is_asked(analysis, config_of(self._run).active_analysis):
            summary = analyse(self._run, only=[analysis]).summary
            table = findings_table(summary.findings, summary.found_by)
        if table is None:
            table = self._stored("findings.parquet", FINDINGS_SCHEMA)
        if table is None:
            table = findings_table(self.analysis.summary.findings, self.analysis.summary.found_by)
        if analysis:
            table = table.filter(pc.equal(table["analysis"], analysis))
        self._check_rank(rank)
        if rank is not None:
            table = table.filter(pa.array([rank in (ranks or ()) for ranks in table["ranks"].to_pylist()], pa.bool_()))
        return table

    def leaks(self) -> pa.Table:
        """findings("leaks"): leaks, candidates, growth and notes about them."""
        return self.findings("leaks")

    def peers(self) -> pa.Table:
        """findings("peers"): ranks that use more, or less, than those of the same work."""
        return self.findings("peers")

    @property
    def tables(self) -> list[str]:
        """What table() knows: the files of cluster/."""
        if self._is_derived and (found := sorted(path.stem for path in (self.path / "cluster").glob("*.csv"))):
            return [name for name in found if name.isidentifier()]
        return sorted(self.analysis.summary.files)

    def table(self, name: str) -> pa.Table:
        """The rows of cluster/<name>.csv: "leaks", "peers", "decompose". A column whose cells are all numbers is one of
        numbers; an empty cell is null."""
        path = self.path / "cluster" / f"{name}.csv"
        if self._is_derived and name.isidentifier() and path.exists():
            return _read_csv(path)
        return _rows(name, self.analysis.summary)

    def owners(self, *, rank: int | None = None, when: str = "", step: int | None = None) -> pa.Table:
        """Whose the memory was: the trees of each process and of the job (`scope`), as in cluster/decompose.csv. when:
        peak or end. step: also that one's, under step_peak and step_end. Modules and optimizers tell what is theirs
        under --analysis decompose."""
        self._check_rank(rank)
        return _where(self._asked("decompose", step), rank=rank, when=when)

    def owner_lines(
        self, *, rank: int | None = None, owner: str = "", when: str = "", step: int | None = None
    ) -> pa.Table:
        """Which lines the bytes of each owner come from, of each process and of the job (`scope`), as in
        cluster/decompose_lines.csv. owner: that one, without those below it, "PTA@optimizer_state". when and step: as
        of owners()."""
        self._check_rank(rank)
        table = self._asked("decompose", step, "decompose_lines")
        return _where(table, rank=rank, owner=owner, when=when)

    def ledger(self, *, rank: int | None = None, step: int | None = None) -> pa.Table:
        """What every byte of the cards and of host memory is, as in cluster/ledger.csv, at the end of a step; None: of
        each process's last complete one."""
        self._check_rank(rank)
        return _where(self._asked("ledger", step), rank=rank)

    def compare(
        self,
        other: OpenedRun | Sequence[OpenedRun] | None = None,
        table: str = "compare",
        *,
        steps: str = "",
        ranks: str = "",
        roles: str = "",
    ) -> pa.Table:
        """What other runs need more or less of than this one, or other parts of this run than its first: the rows of
        compare, compare_sites, compare_owners or compare_operators, or "findings". The options are those of
        `msmemscope compare`. InputError where one of the sides lacks what is compared."""
        if table != "findings" and table not in COMPARED:
            raise UsageError(f"unknown table {table!r}; there are {', '.join((*COMPARED, 'findings'))}")
        others = list(other) if isinstance(other, Sequence) else [] if other is None else [other]
        if wrong := [one for one in others if not isinstance(one, OpenedRun)]:
            raise UsageError(f"compare() takes what open_run() gives; got {type(wrong[0]).__name__}")
        try:
            choices = (
                [CompareOptions(steps=steps, ranks=ranks, roles=roles)]
                if others
                else each_with_first(steps, ranks, roles, CompareOptions())
            )
        except ValueError as error:
            raise UsageError(str(error)) from None
        if (sides := 1 + (len(others) or len(choices))) > len(NAMES):
            raise UsageError(f"at most {len(NAMES)} are compared; got {sides}")
        mine = read_run(self.path, str(self.path))
        theirs = [read_run(one.path, str(one.path)) for one in others] or [mine]
        pairs = [(read, options) for read in theirs for options in choices]
        found = [
            compare_read(mine, read, options, (NAMES[0], name))
            for (read, options), name in zip(pairs, NAMES[1:], strict=False)
        ]
        if table == "findings":
            findings = [finding for one in found for finding in one.findings]
            return findings_table(findings, [COMPARE.name] * len(findings))
        return _as_read(table, COMPARED[table], [row for one in found for row in compared_rows(one)])

    def _asked(self, name: str, step: int | None, table: str = "") -> pa.Table:
        """A table of an analysis that has an option `step`; the run is judged anew where that is not in its files."""
        if step is None and name in config_of(self._run).active_analysis:
            return self.table(table or name)
        options = {} if step is None else {name: {"step": step}}
        summary = analyse(self._run, only=[name], options=options).summary
        told = [row.cells for one in summary.findings for row in one.rows if row.file == name]
        if step is not None and step >= 0 and not any(row.get("step") == step for row in told):
            lasts = [last for last in self.analysis.tracked.last_complete_step.values() if last >= 0]
            there = f"the last that ended is {max(lasts)}" if lasts else "none has ended"
            raise UsageError(f"of step {step} nothing is known; {there}")
        return _rows(table or name, summary)

    def _check_rank(self, rank: int | None) -> None:
        if rank is not None and rank not in self.ranks:
            there = f"its ranks are {fold_ranks(self.ranks)}" if self.ranks else "its processes are no ranks"
            raise UsageError(f"no rank {rank} was recorded; {there}")

    @cached_property
    def analysis(self) -> Analysis:
        """The run judged anew, in memory, by the analyses that it was recorded with."""
        return analyse(self._run)

    # --- what was recorded --------------------------------------------------------------------------------------

    def steps(self, *, rank: int | None = None, step: int | None = None, device: str = "", pool: str = "") -> pa.Table:
        """A row for every process, device, pool and step: levels, peaks and counts, as in cluster/steps.csv."""
        path = self.path / "steps.parquet"
        table = _read(path) if self._is_derived and path.exists() else steps_table(self.analysis.tracked)
        self._check_rank(rank)
        return _where(table, rank=rank, step=step, device=device, pool=pool)

    def processes(self) -> pa.Table:
        """A row for every process that recorded: who it is, when it began and ended, how many events stand in tables,
        and how many are lost."""
        rows = [
            {name: getattr(one, name) for name in _PROCESS_FIELDS} | {"lost": sum(one.lost.values())}
            for one in self._run.processes
        ]
        return pa.Table.from_pylist(rows, pa.schema([*_PROCESS_FIELDS.items(), ("lost", pa.int64())]))

    def usage(self, *, rank: int | None = None, device: str = "") -> pa.Table:
        """Samples of memory use: of the device by everybody, its size, of the process on it, its RSS."""
        self._check_rank(rank)
        return _where(self._run.usage(), rank=rank, device=device)

    def blocks(
        self,
        *,
        rank: int | None = None,
        step: int | None = None,
        device: str = "",
        pool: str = "",
        owner: str = "",
        at_least: int = 0,
        columns: Sequence[str] | None = None,
    ) -> pa.RecordBatchReader:
        """Lives of blocks (docs/formats.md, blocks/), read a piece at a time, only the row groups and columns that are
        wanted. step: those that lived in it, for a while at least. owner: its blocks and those of owners below it,
        as their column or as owners() has it ("gradient", "HOST@gradient", "PTA@unattributed"). at_least: of so many
        bytes. `place` is the user's line; device, pool, name, op and range are texts."""
        paths = sorted((self.path / "blocks").glob("part-*.parquet"))  # none of a run without blocks
        if not (self.path / "blocks").is_dir():
            raise RunError(f"{self.path} has no blocks/ yet: msmemscope analyze {self.path}")
        readable = Readable(self._run, BLOCK_SCHEMA, ("name", "op", "range"))
        chosen = readable.chosen(columns)
        self._check_rank(rank)
        filters = [pc.field("size") >= at_least] if at_least else []
        if rank is not None:
            filters.append(pc.field("rank") == rank)
        if step is not None:
            ended = pc.field("free_step")
            filters.append((pc.field("malloc_step") <= step) & (ended.is_null() | (ended >= step)))
        if device:
            filters.append(_device_filter(device))
        if pool:
            filters.append(pc.field("pool") == int(_pool(pool)))
        if owner:
            filters.append(_owner_filter(owner))
        wanted = None
        for one in filters:
            wanted = one if wanted is None else wanted & one
        scanner = ds.dataset(paths, BLOCK_SCHEMA, format="parquet").scanner(
            readable.needed(chosen), wanted, batch_readahead=2, fragment_readahead=1
        )

        def batches() -> Iterator[pa.RecordBatch]:
            try:
                yield from (readable.made(batch, chosen) for batch in scanner.to_batches() if batch.num_rows)
            except Bad as error:
                raise RunError(f"{self.path}: {error}; msmemscope analyze {self.path} writes blocks/ anew") from None

        return pa.RecordBatchReader.from_batches(readable.schema(chosen), batches())

    def events(
        self,
        *,
        rank: int | None = None,
        step: int | None = None,
        kinds: Sequence[str] = (),
        columns: Sequence[str] | None = None,
    ) -> pa.RecordBatchReader:
        """Events as they were recorded (docs/formats.md, events/), those of a process in their order, a row group at a
        time. kinds: "MALLOC", "FREE", "ACCESS", …; of a rank only its parts of the files are read."""
        readable = Readable(self._run, EVENT_SCHEMA, ("name",))
        chosen = readable.chosen(columns)
        self._check_rank(rank)
        numbers = [int(_kind(kind)) for kind in ([kinds] if isinstance(kinds, str) else kinds)]
        read = [*readable.needed(chosen), *(["step"] if step is not None else [])]

        def batches() -> Iterator[pa.RecordBatch]:
            for batch in self._run.events(rank=rank, columns=list(dict.fromkeys(read)), kinds=numbers or None):
                rows = batch if step is None else batch.filter(pc.equal(batch["step"], step))
                if rows.num_rows:
                    yield readable.made(rows, chosen)

        return pa.RecordBatchReader.from_batches(readable.schema(chosen), batches())

    def sql(self, query: str) -> pa.Table:
        """What a query says, by DuckDB, over the tables events, blocks, steps, findings, processes, usage, strings,
        frames, stacks and places (the user's line of a stack), kinds, pools and device_types (numbers and names), and
        those of `tables`. Columns: docs/formats.md. Needs `pip install 'msmemscope[sql]'`. UsageError for a wrong
        query."""
        from msmemscope.query.sql import ask

        return ask(self, self._run, query)

    # --- derived files --------------------------------------------------------------------------------------------

    @property
    def _is_derived(self) -> bool:
        """Whether the run has come to its end: then its derived files say what its events say."""
        return bool(self.info.get("finished"))

    def _stored(self, name: str, schema: pa.Schema) -> pa.Table | None:
        path = self.path / name
        if not self._is_derived or not path.exists():
            return None
        table = _read(path)
        return table if table.schema.equals(schema) else None  # of an older version


def _rows(name: str, summary: Summary) -> pa.Table:
    """The table as it would be read from cluster/<name>.csv."""
    if name not in summary.files:
        raise UsageError(f"unknown table {name!r}; there are {', '.join(sorted(summary.files))}")
    return _as_read(name, summary.files[name], (row for one in summary.findings for row in one.rows))


def _as_read(name: str, columns: Sequence[str], rows: Iterable[Row]) -> pa.Table:
    text = io.StringIO()
    put_rows(text, name, columns, rows)
    # Not a file of Python's, which a thread of Arrow's would let go of (Anchor.open_native).
    return _read_csv(pa.BufferReader(text.getvalue().encode("utf-8", "replace")))


def _read(path: Path) -> pa.Table:
    try:
        return pq.read_table(path)
    except Bad as error:
        raise RunError(f"{path} cannot be read ({error}): msmemscope analyze {path.parent} writes it anew") from None


def _read_csv(source: Path | pa.BufferReader) -> pa.Table:
    types = pa_csv.ConvertOptions(column_types=dict.fromkeys(_TEXTS, pa.string()), strings_can_be_null=True)
    lines = pa_csv.ParseOptions(newlines_in_values=True)
    try:
        table = pa_csv.read_csv(source, parse_options=lines, convert_options=types)
        names = {name.lower() for name in table.column_names}
    except Bad as error:
        raise RunError(f"{source} cannot be read ({error}): msmemscope analyze writes it anew") from None
    if len(names) < table.num_columns or table.num_columns > _MOST_COLUMNS:
        raise RunError(f"{source} has columns of one name, or too many: msmemscope analyze writes it anew")
    return table


def _where(table: pa.Table, **wanted: str | int | None) -> pa.Table:
    """The rows with these values. UsageError for a value that no row of the table has, though others have one, but
    for ranks."""
    known = {name: table[name].unique().to_pylist() for name in wanted if name in table.column_names and name != "rank"}
    for name, value in wanted.items():
        if value is None or value == "":
            continue
        if name not in table.column_names:
            raise UsageError(f"the table has no column {name!r}; there are {', '.join(table.column_names)}")
        try:
            column = table[name].cast(pa.string() if isinstance(value, str) else pa.int64())  # null where all are empty
            if name in known:
                _check_known(name, value, known[name])
            table = table.filter(pc.equal(column, value))
        except (*Bad, KeyError) as error:  # a file of somebody else's, in which the column is of another kind
            raise RunError(f"column {name} cannot be compared with {value!r} ({error})") from None
    return table


def _check_known(name: str, value: str | int, known: Sequence[Any]) -> None:
    there = sorted({one for one in known if one not in (None, "")}, key=lambda one: (str(type(one)), one))
    if isinstance(value, int):
        if there and not min(there) <= value <= max(there):  # of long runs not every step has a row
            raise UsageError(f"no {name} {value}; there are {min(there)} to {max(there)}")
    elif there and value not in there:  # a table without rows has none of any value
        listed = ", ".join(map(str, there[:12])) + (f" and {len(there) - 12} more" if len(there) > 12 else "")
        raise UsageError(f"no {name} {value!r}; there are {listed}")


def _device_filter(device: str) -> pc.Expression:
    """ "npu" is any NPU, "npu:3" that one."""
    name, _, number = device.partition(":")
    kinds = {one.name.lower(): int(one) for one in DeviceType if one != DeviceType.NONE}
    if name not in kinds or (number and not number.isdigit()):
        raise UsageError(f"unknown device {device!r}; such as cpu, npu, npu:0, cuda:3")
    found = pc.field("device_type") == kinds[name]
    return found & (pc.field("device") == int(number)) if number else found


def _owner_filter(owner: str) -> pc.Expression:
    """An owner as blocks have it, or as trees do, whose root is the pool also where blocks have none (HOST, CUDA)."""
    text = pc.field("owner").cast(pa.string())
    found = _is_within(text, owner)
    root, below = first_level(owner), below_first(owner)
    if root not in Pool.__members__:
        return found
    if below == UNATTRIBUTED:
        of_nobody = pc.is_in(text, pa.array(["", root, path_text((root, "ops"))]))
    else:
        of_nobody = (
            (text == below) | pc.starts_with(text, beginning_of_those_below(below)) if below else pc.scalar(True)
        )
    return found | ((pc.field("pool") == int(Pool[root])) & of_nobody)


def _is_within(text: pc.Expression, above: str) -> pc.Expression:
    """As owner_paths.is_within, of a column."""
    return (text == above) | pc.starts_with(text, beginning_of_those_below(above))


def _pool(name: str) -> Pool:
    try:
        return Pool[name]
    except KeyError:
        raise UsageError(f"unknown pool {name!r}; there are {', '.join(one.name for one in Pool)}") from None


def _kind(name: str) -> Kind:
    try:
        return Kind[name]
    except KeyError:
        raise UsageError(f"unknown kind {name!r}; docs/formats.md lists them") from None
