"""The twelve cells of upstream's memscope_dump rows, made column by column.

In: columns of events of one process and one device, in the order in which they shall be written, with what the
block tracker knows about them. Out: `Rows`, one column per cell, in the dialect of the file (CSV or SQLite).
No Python code runs per row: a text is made once for each distinct name or stack and then spread by Arrow.

Layout: docs/formats.md. Upstream's files are kept to the letter except where they were broken: texts are quoted
properly, JSON values are escaped, and cells that a spreadsheet would run as a formula are made harmless.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from msmemscope.analysis.frames import is_tool_file
from msmemscope.analysis.owners import owner_of
from msmemscope.folds.segments import GIANT_PAGES, HUGE_PAGES
from msmemscope.text import plain
from msmemscope.vocabulary import DeviceType, Flag, Kind, Pool, SystemEvent

COLUMNS = (
    "ID",
    "Event",
    "Event Type",
    "Name",
    "Timestamp(ns)",
    "Process Id",
    "Thread Id",
    "Device Id",
    "Ptr",
    "Attr",
    "Call Stack(Python)",
    "Call Stack(C)",
)
NOT_APPLICABLE = "N/A"
CPU = "cpu"

MEMORY_KINDS = (Kind.MALLOC, Kind.FREE)
# Kinds that have a row in upstream's files. The others (segments, labels, collectives, ...) are in the events table.
DUMPED_KINDS = (
    *MEMORY_KINDS,
    Kind.ACCESS,
    Kind.OP_START,
    Kind.OP_END,
    Kind.KERNEL_LAUNCH,
    Kind.KERNEL_START,
    Kind.KERNEL_END,
    Kind.MARK,
    Kind.RANGE_START,
    Kind.RANGE_END,
    Kind.STEP,
    Kind.SNAPSHOT,
    Kind.OOM,
    Kind.SYSTEM,
)
MARK_KINDS = (Kind.MARK, Kind.RANGE_START, Kind.RANGE_END)
SHARED_KINDS = (Kind.STEP, Kind.SYSTEM)  # these stand in every device file of the process

Columns = dict[str, np.ndarray[Any, Any]]
Texts: TypeAlias = Any  # pa.LargeStringArray: pyarrow has no types
Value = Texts | str
Piece = tuple[str, Value]  # a key of Attr and its values; null leaves the key out of that row


class Lookup(Protocol):
    """What the rows need of a run: texts and stacks behind the ids."""

    def string(self, id: int, /) -> str: ...

    def stack(self, id: int, /) -> tuple[Any, ...]: ...


@dataclass(frozen=True)
class Rows:
    """Rows ready to be written: numbers as numbers, texts in the dialect of the file."""

    ids: np.ndarray[Any, Any]
    events: Texts
    types: Texts
    names: Texts
    times: np.ndarray[Any, Any]  # wall clock, ns
    pid: int
    tids: np.ndarray[Any, Any]  # 0: unknown, shown as N/A
    devices: Texts
    ptrs: Texts
    attrs: Texts
    python_stacks: Texts
    c_stacks: Texts

    def __len__(self) -> int:
        return len(self.ids)


class CsvDialect:
    """RFC 4180, with the quotes where upstream has them: mstx names, Attr and stacks always, others when needed."""

    attr_open, attr_close, attr_empty = '"{', '}"', ""
    after_value = ""

    def key(self, key: str) -> str:
        return f"{key}:"

    def value(self, text: str) -> str:
        return plain(text).replace('"', '""')

    def name(self, text: str, quoted: bool) -> str:
        text = harmless(plain(text))
        return _quoted(text) if quoted or any(c in text for c in ',"') else text

    def stack(self, text: str) -> str:
        return _quoted(harmless(text)) if text else ""


class JsonDialect:
    """The .db file: Attr is a JSON object whose values are all texts; nothing else needs quoting in a database."""

    attr_open, attr_close, attr_empty = "{", "}", "{}"
    after_value = '"'

    def key(self, key: str) -> str:
        return f'"{key}":"'

    def value(self, text: str) -> str:
        return json.dumps(text, ensure_ascii=False)[1:-1]

    def name(self, text: str, quoted: bool) -> str:  # noqa: ARG002 (as CsvDialect's)
        return text

    def stack(self, text: str) -> str:
        return text


Dialect = CsvDialect | JsonDialect


class RowBuilder:
    """Turns event columns into Rows. Keeps the texts it made, up to a limit, because stacks repeat endlessly."""

    def __init__(
        self,
        lookup: Lookup,
        dialect: Dialect,
        *,
        stack_depth: int | None = None,
        owners: bool = False,
        python_stacks: bool = False,
    ) -> None:
        """`stack_depth`: innermost frames shown per stack; None shows all of them, 0 leaves the cells empty. `owners`:
        MALLOC rows say whose they are. `python_stacks`: they were recorded, so a memory row without one says NA."""
        self._lookup = lookup
        self._dialect = dialect
        self._depth = stack_depth
        self._owners = owners
        self._python_stacks = python_stacks
        self._stacks: dict[int, str] = {}
        self._stack_chars = 0

    def rows(self, columns: Columns, *, pid: int, home: str) -> Rows:
        """`columns`: EVENT_COLUMNS with `ts` as wall clock, and id, allocation_id, used, pool_live (int64), and of the
        newest sample at that time process_used, device_used, device_total (-1: not known). OOM rows of blocks that were
        alive have in `attr` the wall clock of their allocation.

        `home` is the Device Id of the file, shown on rows that belong to the process rather than to a device.
        """
        kinds = columns["kind"]
        parts: list[np.ndarray[Any, Any]] = []
        cells: list[tuple[Texts, ...]] = []
        for kinds_of_group, group in _GROUPS:
            index = np.flatnonzero(np.isin(kinds, kinds_of_group))
            if len(index):
                parts.append(index)
                chosen = (
                    {name: column[index] for name, column in columns.items()} if len(index) < len(kinds) else columns
                )
                cells.append(group(self, chosen))
        order = np.argsort(np.concatenate(parts), kind="stable") if len(parts) > 1 else None
        merged = []
        for cell in zip(*cells, strict=True):
            merged.append(cell[0] if order is None else pa.concat_arrays(cell).take(pa.array(order)))
        events, types, names, ptrs, attrs = merged
        return Rows(
            ids=columns["id"],
            events=events,
            types=types,
            names=names,
            times=columns["ts"],
            pid=pid,
            tids=columns["tid"],
            devices=_device_cells(columns, home),
            ptrs=ptrs,
            attrs=attrs,
            python_stacks=self._stack_cells(columns, "stack_py"),
            c_stacks=self._stack_cells(columns, "stack_c"),
        )

    # --- one method per group of kinds: (Event, Event Type, Name, Ptr, Attr) -----------------------------------

    def memory(self, columns: Columns) -> tuple[Texts, ...]:
        n = len(columns["kind"])
        hex_ptr = _hex(columns["ptr"])
        types = _event_types(columns)
        cpu_tensor = columns["pool"] == Pool.HOST
        pinned = (columns["flags"] & Flag.PINNED != 0) | ((columns["device_type"] == DeviceType.CPU) & ~cpu_tensor)
        total = np.where(cpu_tensor, columns["pool_live"], columns["total"])
        has_total = (total >= 0) & ~np.isin(columns["pool"], (Pool.HAL, Pool.CUDA_DRIVER))
        shadow = columns["flags"] & (Flag.SYNTHETIC | Flag.SHADOW) != 0
        malloc = columns["kind"] == Kind.MALLOC
        driver = malloc & (columns["pool"] == Pool.HAL) & (columns["device_type"] == DeviceType.NPU)
        attrs = self._attrs(
            [
                ("allocation_id", _numbers(columns["allocation_id"])),
                ("addr", hex_ptr),
                ("size", _numbers(columns["size"])),
                ("pinned", _where(pinned, "true")),
                ("used", _numbers(columns["used"])),
                ("total", _numbers(total, has_total)),
                *_sampled(columns, ~shadow),
                ("shadow", _where(shadow, "true")),
                *([("owner", _owner_texts(columns, malloc))] if self._owners else []),
                *_driver_words(columns, driver),
            ]
        )
        events = _pick(("MALLOC", "FREE"), columns["kind"] == Kind.FREE)
        return events, types, _constant(NOT_APPLICABLE, n), hex_ptr, attrs

    def access(self, columns: Columns) -> tuple[Texts, ...]:
        n = len(columns["kind"])
        hex_ptr = _hex(columns["ptr"])
        known = columns["allocation_id"] > 0
        pieces: list[Piece] = [
            ("addr", hex_ptr),
            ("size", _numbers(columns["size"])),
            ("type", _event_types(columns)),
        ]
        attrs = self._attrs(
            [("allocation_id", _numbers(columns["allocation_id"], known)), *pieces],
            tail=self._spread(columns["attr"], lambda text: self._pairs(text)),
        )
        kinds = _pick(("UNKNOWN", "READ", "WRITE"), np.minimum(columns["aux"], 2))
        return _constant("ACCESS", n), kinds, _constant(NOT_APPLICABLE, n), hex_ptr, attrs

    def operators(self, columns: Columns) -> tuple[Texts, ...]:
        n = len(columns["kind"])
        atb = columns["aux"] == 1
        types = _pick(("ATEN_START", "ATEN_END", "ATB_START", "ATB_END"), (columns["kind"] == Kind.OP_END) + 2 * atb)
        attrs = self._attrs([], tail=self._spread(np.where(atb, columns["attr"], 0), self._pairs_or("path")))
        return _constant("OP_LAUNCH", n), types, self._names(columns), _constant(NOT_APPLICABLE, n), attrs

    def kernels(self, columns: Columns) -> tuple[Texts, ...]:
        n = len(columns["kind"])
        atb = (columns["aux"] == 1) & (columns["kind"] != Kind.KERNEL_LAUNCH)
        types = _pick(
            ("KERNEL_LAUNCH", "KERNEL_EXECUTE_START", "KERNEL_EXECUTE_END", "KERNEL_START", "KERNEL_END"),
            columns["kind"].astype(np.int64) - Kind.KERNEL_LAUNCH + 2 * atb,
        )
        runtime = self._attrs([("streamId", _numbers(columns["ptr"])), ("taskId", _numbers(columns["attr"]))])
        if atb.any():
            paths = self._attrs([], tail=self._spread(np.where(atb, columns["attr"], 0), self._pairs_or("path")))
            runtime = pc.if_else(pa.array(atb), paths, runtime)
        return _constant("KERNEL_LAUNCH", n), types, self._names(columns), _constant(NOT_APPLICABLE, n), runtime

    def marks(self, columns: Columns) -> tuple[Texts, ...]:
        n = len(columns["kind"])
        types = _pick(("Mark", "Range_start", "Range_end"), columns["kind"].astype(np.int64) - Kind.MARK)
        names = self._spread(columns["name"], lambda text: self._dialect.name(text, quoted=True))
        ends = columns["kind"] == Kind.RANGE_END
        if ends.any():  # an end carries only the id of its range; upstream names it like this
            texts = [
                self._dialect.name(f"Range end from id {number}", quoted=True) for number in columns["attr"].tolist()
            ]
            names = pc.if_else(pa.array(ends), _texts(texts), names)
        return _constant("MSTX", n), types, names, _constant(NOT_APPLICABLE, n), self._no_attr(n)

    def system(self, columns: Columns) -> tuple[Texts, ...]:
        n = len(columns["kind"])
        steps = columns["kind"] == Kind.STEP
        known = {int(event): event.name for event in SystemEvent}
        types = [
            "STEP" if step else known.get(aux, NOT_APPLICABLE)
            for step, aux in zip(steps.tolist(), columns["aux"].tolist(), strict=True)
        ]
        # msmemscope.step() ends a step; the event tells which one begins.
        ended = _numbers(columns["step"].astype(np.int64) - 1)
        numbers = pc.if_else(pa.array(steps), ended, _constant(NOT_APPLICABLE, n))
        attrs = self._no_attr(n)
        # Only the rows of START_TRACE have figures of a card here (dump.py).
        started = (columns["aux"] == SystemEvent.START_TRACE) & ~steps & (columns["device_total"] >= 0)
        if started.any():
            free, total = columns["device_total"] - columns["device_used"], columns["device_total"]
            card = self._attrs([("free", _numbers(free)), ("total", _numbers(total))])
            attrs = pc.if_else(pa.array(started), card, attrs)
        return _constant("SYSTEM", n), _texts(types), numbers, _constant(NOT_APPLICABLE, n), attrs

    def snapshots(self, columns: Columns) -> tuple[Texts, ...]:
        n = len(columns["kind"])
        reserved, allocated = columns["total"], columns["used"]
        # One of ours, at a request that failed, has no figure of its own from the device.
        made = columns["flags"] & Flag.SYNTHETIC != 0
        total = columns["device_total"]
        free = np.where(made, total - columns["device_used"], columns["attr"].astype(np.int64))
        told = (total >= 0) & (~made | (columns["device_used"] >= 0))
        attrs = self._attrs(
            [
                ("reserved", _numbers(reserved)),
                ("max_reserved", _numbers(columns["size"])),
                ("allocated", _numbers(allocated)),
                ("max_allocated", _numbers(columns["ptr"])),
                ("total", _numbers(total, total >= 0)),
                ("free", _numbers(free, ~made | told)),
                ("device_rate", _rates(total - free, total, told)),
                ("reserved_rate", _rates(allocated, reserved)),
            ]
        )
        return (
            _constant("SNAPSHOT", n),
            _constant("SNAPSHOT", n),
            pc.if_else(pa.array(made), _big("OOM_Snapshot"), self._names(columns)),
            _constant(NOT_APPLICABLE, n),
            attrs,
        )

    def out_of_memory(self, columns: Columns) -> tuple[Texts, ...]:
        n = len(columns["kind"])
        what = np.minimum(columns["aux"], 2)
        trigger = what == 0
        functions = self._spread(columns["name"], self._dialect.value)
        triggers = self._attrs(
            [
                ("func", functions),
                ("req_size", _numbers(columns["size"])),
                ("flag", _numbers(columns["ptr"])),
                ("ret", _numbers(columns["attr"])),
            ]
        )
        blocks = self._attrs(
            [
                ("pool", _event_types(columns)),
                ("ptr", _hex(columns["ptr"])),
                ("size", _numbers(columns["size"])),
                ("timestamp", _numbers(columns["attr"])),
            ]
        )
        return (
            _constant("OOM_DETAIL", n),
            _pick(("OOM_TRIGGER", "OOM_RECENT_ALLOC", "OOM_TOP_ALLOC"), what),
            _pick(("OOM_Trigger", "OOM_RecentAlloc", "OOM_TopAlloc"), what),
            _constant(NOT_APPLICABLE, n),
            pc.if_else(pa.array(trigger), triggers, blocks),
        )

    # --- texts --------------------------------------------------------------------------------------------------

    def _names(self, columns: Columns) -> Texts:
        return self._spread(columns["name"], lambda text: self._dialect.name(text or NOT_APPLICABLE, quoted=False))

    def _pairs(self, text: str) -> str:
        return "".join(
            f",{self._dialect.key(key)}{self._dialect.value(value)}{self._dialect.after_value}"
            for key, value in split_pairs(text)
        )

    def _pairs_or(self, key: str) -> Callable[[str], str]:
        """The text as key:value pairs; a text without keys becomes the value of `key`."""
        return lambda text: self._pairs(text if not text or split_pairs(text) else f"{key}:{text}")

    def _spread(self, ids: np.ndarray[Any, Any], make: Callable[[str], str]) -> Texts:
        return _by_code(ids, lambda text: make(self._lookup.string(text)))

    def _no_attr(self, n: int) -> Texts:
        return _constant(self._dialect.attr_empty, n)

    def _attrs(self, pieces: Sequence[Piece], tail: Texts | None = None) -> Texts:
        """Attr of every row: `pieces` without their nulls, then `tail`, whose texts begin with a comma."""
        dialect = self._dialect
        parts: list[Value] = []
        always_first = bool(pieces) and not (isinstance(pieces[0][1], pa.Array) and pieces[0][1].null_count)
        for key, value in pieces:
            comma = "" if always_first and not parts else ","
            begin, end = f"{comma}{dialect.key(key)}", dialect.after_value
            if isinstance(value, str) or value.null_count == 0:
                parts += [begin, value, end]
            else:
                parts.append(
                    pc.fill_null(pc.binary_join_element_wise(_big(begin), value, _big(end), _big("")), _big(""))
                )
        if tail is not None:
            parts.append(tail)
        body = pc.binary_join_element_wise(*(_big(p) if isinstance(p, str) else p for p in parts), _big(""))
        if not always_first:
            body = pc.utf8_slice_codeunits(body, 1)  # the comma before the first key, whichever that is
        full = pc.binary_join_element_wise(_big(dialect.attr_open), body, _big(dialect.attr_close), _big(""))
        if pieces:
            return full
        return pc.if_else(pc.equal(pc.binary_length(body), 0), _big(dialect.attr_empty), full)

    def _stack_cells(self, columns: Columns, column: str) -> Texts:
        # Upstream's STEP rows have none; ours is kept for the analysis, which looks for the training loop in it.
        codes = np.where(columns["kind"] == Kind.STEP, 0, columns[column])
        cells = _by_code(codes, self._stack)
        if column == "stack_py":
            missing = columns["flags"] & Flag.STACK_LOST != 0
            if self._python_stacks:  # the others are those of threads without Python, such as autograd's
                unasked = columns["flags"] & (Flag.SHADOW | Flag.SYNTHETIC) != 0
                missing |= IS_MEMORY[columns["kind"]] & ~unasked
            missing &= columns[column] == 0
            if missing.any():
                cells = pc.if_else(pa.array(missing), _big(self._dialect.stack("NA")), cells)
        return cells

    def _stack(self, stack: int) -> str:
        if stack == 0 or self._depth == 0:
            return ""
        cell = self._stacks.get(stack)
        if cell is None:
            frames = [frame for frame in self._lookup.stack(stack) if not is_tool_file(frame.file)]
            cell = self._dialect.stack(stack_text(frames[: self._depth]))
            if self._stack_chars > _KEPT_STACK_CHARS:
                self._stacks.clear()
                self._stack_chars = 0
            self._stacks[stack] = cell
            self._stack_chars += len(cell)
        return cell


_KEPT_STACK_CHARS = 64 << 20

_GROUPS: tuple[tuple[tuple[Kind, ...], Callable[[RowBuilder, Columns], tuple[Texts, ...]]], ...] = (
    (MEMORY_KINDS, RowBuilder.memory),
    ((Kind.ACCESS,), RowBuilder.access),
    ((Kind.OP_START, Kind.OP_END), RowBuilder.operators),
    ((Kind.KERNEL_LAUNCH, Kind.KERNEL_START, Kind.KERNEL_END), RowBuilder.kernels),
    (MARK_KINDS, RowBuilder.marks),
    ((Kind.STEP, Kind.SYSTEM), RowBuilder.system),
    ((Kind.SNAPSHOT,), RowBuilder.snapshots),
    ((Kind.OOM,), RowBuilder.out_of_memory),
)


def stack_text(frames: Sequence[Any]) -> str:
    """One line per frame, innermost first: `file(line): function`, a native one as backtrace_symbols writes it."""
    return "".join(f"{frame_text(frame)}\n" for frame in frames)


def frame_text(frame: Any) -> str:
    if frame.kind == "native":
        where = frame.function or f"+{frame.line:#x}"
        return plain(f"{frame.file}({where}) [{frame.line:#x}]")
    return plain(f"{frame.file}({frame.line}): {frame.function}")


def split_pairs(text: str) -> list[tuple[str, str]]:
    """`k:v,k:v` as pairs. A comma belongs to the value unless an identifier and a colon follow it."""
    starts = list(re.finditer(r"(?:^|,)(\w+):", text))
    ends = [*(match.start() for match in starts), len(text)][1:]
    return [(match[1], text[match.end() : end]) for match, end in zip(starts, ends, strict=True)]


def event_type(pool: int, device_type: int) -> str:
    """The Event Type of a block. Page-locked host memory is HOST, whichever driver it came from."""
    if device_type == DeviceType.CPU and pool in (Pool.HAL, Pool.CUDA_DRIVER, Pool.NONE):
        return Pool.HOST.name
    try:
        return NOT_APPLICABLE if pool == Pool.NONE else Pool(pool).name
    except ValueError:
        return NOT_APPLICABLE


def device_id(device_type: int, device: int) -> str:
    """The Device Id of upstream: `cpu`, a number, or N/A."""
    if device_type == DeviceType.CPU:
        return CPU
    return NOT_APPLICABLE if device_type == DeviceType.NONE or device < 0 else str(device)


def kind_mask(kinds: Sequence[int]) -> np.ndarray[Any, Any]:
    """Indexed by a column of kinds: whether each is one of `kinds`. Much cheaper than np.isin."""
    mask = np.zeros(256, bool)
    mask[list(kinds)] = True
    return mask


IS_MEMORY = kind_mask(MEMORY_KINDS)
IS_DUMPED = kind_mask(DUMPED_KINDS)
IS_SHARED = kind_mask(SHARED_KINDS)
IS_MARK = kind_mask(MARK_KINDS)


def distinct_codes(codes: np.ndarray[Any, Any]) -> tuple[list[int], np.ndarray[Any, Any] | None]:
    """The values of a column and which of them each row has; None when there is only one, as in most columns."""
    if len(codes) and (codes == codes[0]).all():
        return [int(codes[0])], None
    distinct, inverse = np.unique(codes, return_inverse=True)
    return distinct.tolist(), inverse


def _by_code(codes: np.ndarray[Any, Any], text_of: Callable[[int], str]) -> Texts:
    """The text of every row, made once for each code."""
    distinct, inverse = distinct_codes(codes)
    if inverse is None:
        return _constant(text_of(distinct[0]), len(codes))
    return _texts([text_of(code) for code in distinct]).take(pa.array(inverse))


def _event_types(columns: Columns) -> Texts:
    codes = columns["pool"].astype(np.int64) << 8 | columns["device_type"]
    return _by_code(codes, lambda code: event_type(code >> 8, code & 255))


def _device_cells(columns: Columns, home: str) -> Texts:
    types, devices = columns["device_type"].astype(np.int64), columns["device"].astype(np.int64)
    codes = np.where(columns["kind"] == Kind.STEP, -1, types << 16 | (devices + 1))
    codes[columns["kind"] == Kind.SYSTEM] = 0  # they belong to the process, also where a card is told
    return _by_code(codes, lambda code: home if code < 0 else device_id(code >> 16, (code & 0xFFFF) - 1))


def _sampled(columns: Columns, timely: np.ndarray[Any, Any]) -> list[Piece]:
    """process_used and device_used where a sample says them; rows made up or late have no time for one."""
    pieces: list[Piece] = []
    for name in ("process_used", "device_used"):
        known = timely & (columns[name] >= 0)
        if known.any():
            pieces.append((name, _numbers(columns[name], known)))
    return pieces


def _owner_texts(columns: Columns, malloc: np.ndarray[Any, Any]) -> Texts:
    """Null where nobody is the owner, and on other rows than MALLOC."""
    where = columns["pool"].astype(np.int64) << 16 | columns["device_type"].astype(np.int64) << 8
    codes = np.where(malloc, where | (columns["attr"] >> np.uint64(56)).astype(np.int64), 0)
    texts = _by_code(codes, lambda code: owner_of(code >> 16, code >> 8 & 255, (code & 255) << 56))
    return pc.if_else(pc.equal(pc.binary_length(texts), 0), pa.scalar(None, pa.large_string()), texts)


def _driver_words(columns: Columns, driver: np.ndarray[Any, Any]) -> list[Piece]:
    """What the driver's flag word says of the pages, and by which call they came."""
    if not driver.any():
        return []
    words, mask = columns["attr"], pa.array(driver)
    big, giant = words & np.uint64(HUGE_PAGES) != 0, words & np.uint64(GIANT_PAGES) != 0
    pages = _pick(("normal", "huge", "giant"), np.where(giant, 2, big))
    calls = _pick(("alloc", "create"), columns["flags"] & Flag.HANDLE != 0)
    nothing = pa.scalar(None, pa.large_string())
    return [("page_type", pc.if_else(mask, pages, nothing)), ("alloc_type", pc.if_else(mask, calls, nothing))]


def _rates(part: np.ndarray[Any, Any], whole: np.ndarray[Any, Any], known: np.ndarray[Any, Any] | None = None) -> Texts:
    """Percent with six decimals, 0 of nothing; null where `known` does not hold."""
    texts = [f"{100 * a / b:.6f}" if b > 0 else "0.000000" for a, b in zip(part.tolist(), whole.tolist(), strict=True)]
    cells = _texts(texts)
    return cells if known is None else pc.if_else(pa.array(known), cells, pa.scalar(None, pa.large_string()))


def _texts(values: Sequence[str]) -> Texts:
    # A file name may hold bytes that are no UTF-8; they reach us as surrogates, which Arrow refuses.
    return pa.array([v.encode("utf-8", "replace").decode() for v in values], pa.large_string())


def _big(text: str) -> pa.LargeStringScalar:
    return pa.scalar(text, pa.large_string())


def _constant(text: str, n: int) -> Texts:
    return pa.repeat(_big(text), n)


def _pick(texts: Sequence[str], index: np.ndarray[Any, Any]) -> Texts:
    return _texts(texts).take(pa.array(index.astype(np.int64)))


def _where(mask: np.ndarray[Any, Any], text: str) -> Texts:
    """`text` where the mask holds, null elsewhere."""
    return pa.array([None, text], pa.large_string()).take(pa.array(mask.astype(np.int64)))


def _numbers(values: np.ndarray[Any, Any], mask: np.ndarray[Any, Any] | None = None) -> Texts:
    """Decimal texts; null where `mask` does not hold."""
    array = pa.array(values, mask=None if mask is None or mask.all() else ~mask)
    return array.cast(pa.large_string())


_HEX_PAIRS = np.frombuffer("".join(f"{byte:02x}" for byte in range(256)).encode(), np.uint8).reshape(256, 2)


def _hex(values: np.ndarray[Any, Any]) -> Texts:
    """0x and 16 hex digits each."""
    n = len(values)
    text = np.empty((n, 18), np.uint8)
    text[:, :2] = np.frombuffer(b"0x", np.uint8)
    text[:, 2:] = _HEX_PAIRS[np.ascontiguousarray(values, dtype=">u8").view(np.uint8).reshape(n, 8)].reshape(n, 16)
    offsets = np.arange(0, 18 * n + 1, 18, dtype=np.int64)
    return pa.LargeStringArray.from_buffers(n, pa.py_buffer(offsets), pa.py_buffer(text))


def _quoted(text: str) -> str:
    return '"' + text.replace('"', '""') + '"'


def harmless(text: str) -> str:
    """A cell that begins with = + - @ is run as a formula by spreadsheets; a leading apostrophe makes it text."""
    return f"'{text}" if text[:1] in ("=", "+", "-", "@") and text else text
