"""SQL over a run: DuckDB, which reads of the files what a query needs.

In: a query. Out: its result. Views lie over the files of the run, and a query sees nothing else: queries are passed
on like runs, so it opens no other file, writes none and fetches no extension. What a large one spills lies in a
temporary directory that is gone afterwards.
"""

from __future__ import annotations

import importlib
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from msmemscope.analysis.live_lines import line_of
from msmemscope.errors import MemscopeError, UsageError
from msmemscope.report.block_table import BLOCK_SCHEMA
from msmemscope.tables.run import Run
from msmemscope.tables.schema import EVENT_SCHEMA, FRAME_SCHEMA, STACK_SCHEMA, STRING_SCHEMA
from msmemscope.vocabulary import DeviceType, Kind, Pool

if TYPE_CHECKING:
    from msmemscope.query.opened import OpenedRun

EXTRA = "pip install 'msmemscope[sql]'"
_FILES = {"events": EVENT_SCHEMA, "blocks": BLOCK_SCHEMA}
_DEFINITIONS = {"strings": STRING_SCHEMA, "frames": FRAME_SCHEMA, "stacks": STACK_SCHEMA}
_NUMBERS = {"kinds": Kind, "pools": Pool, "device_types": DeviceType}
_MEMORY = "1GiB"
"""Of DuckDB, which else takes four fifths of the machine's; what a query needs beyond it lies in its directory."""

PLACES = pa.schema([("stack", pa.uint64()), ("file", pa.string()), ("line", pa.int64()), ("function", pa.string())])
TABLES = (*_FILES, *_DEFINITIONS, *_NUMBERS, "places", "steps", "findings", "processes", "usage")


def ask(opened: OpenedRun, run: Run, query: str) -> pa.Table:
    """The result of one query. UsageError where DuckDB is not installed or does not take the query."""
    try:
        duckdb = importlib.import_module("duckdb")
    except ImportError:
        raise UsageError(f"sql() needs DuckDB, which is not installed: {EXTRA}") from None
    if not isinstance(query, str):
        raise UsageError(f"sql() takes a text; got {type(query).__name__}")
    derived = [name for name in opened.tables if name.lower() not in TABLES]  # names are alike in any case
    with _closed_in(duckdb) as connection:
        try:
            for name in (*TABLES, *derived):
                if re.search(rf"\b{name}\b", query, re.IGNORECASE):
                    connection.register(name if name not in _DEFINITIONS else f"{name}_", _table(name, opened, run))
                    if name in _DEFINITIONS:  # one may stand in several parts
                        connection.execute(f"CREATE VIEW {name} AS SELECT DISTINCT ON (id) * FROM {name}_")
            found = connection.sql(query)
            if found is None:
                raise UsageError("sql() takes a query that has a result")
            return found.to_arrow_table()
        except duckdb.Error as error:
            raise UsageError(f"{str(error).strip()}; tables: {', '.join((*TABLES, *derived))}") from None


@contextmanager
def _closed_in(duckdb: Any) -> Iterator[Any]:
    """A connection that reaches nothing but what is registered."""
    try:
        place = tempfile.TemporaryDirectory(prefix="msmemscope-sql-")
    except OSError as error:
        raise MemscopeError(f"sql() has no temporary directory ({error.strerror}): set TMPDIR") from None
    with place as directory, duckdb.connect(":memory:") as connection:
        connection.execute("SET python_enable_replacements = false")  # names are of the run, not of whoever calls
        connection.execute("SET temp_directory = ?", [directory])
        connection.execute("SET memory_limit = ?", [_MEMORY])
        connection.execute("SET enable_external_access = false")
        connection.execute("SET lock_configuration = true")
        yield connection


def _table(name: str, opened: OpenedRun, run: Run) -> Any:
    """What a query is told of: a data set, of which DuckDB reads rows and columns that it needs, or a table."""
    if name in _FILES or name in _DEFINITIONS:
        schema = _FILES.get(name) or _DEFINITIONS[name]
        return _parts(run, name, schema)
    if name in _NUMBERS:
        rows = [{"number": int(one), "name": one.name} for one in _NUMBERS[name]]
        return pa.Table.from_pylist(rows, pa.schema([("number", pa.int64()), ("name", pa.string())]))
    if name == "places":
        return _places(run)
    return getattr(opened, name)() if name in TABLES else opened.table(name)


def _parts(run: Run, name: str, schema: pa.Schema) -> Any:
    paths = sorted((run.path / name).glob("part-*.parquet"))
    return ds.dataset(paths, schema, format="parquet") if paths else ds.dataset(schema.empty_table())


def _places(run: Run) -> pa.Table:
    """The user's line of each call stack."""
    rows = []
    for id in pc.unique(_parts(run, "stacks", STACK_SCHEMA).to_table(columns=["id"])["id"]).to_pylist():
        frame = line_of(run.stack(id))
        if frame is not None:
            rows.append({"stack": id, "file": frame.file, "line": frame.line, "function": frame.function})
    return pa.Table.from_pylist(rows, PLACES)
