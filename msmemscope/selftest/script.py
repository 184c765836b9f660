"""The language of scripted jobs: what each process allocates, frees and tells, in the order in which it does.

    def keeps_its_losses(job: Script) -> None:
        for rank in job.ranks(4):
            for _ in range(24):
                rank.alloc(4096, at="train.py:58")          # never freed
                rank.free(rank.alloc(1 * MIB, at="model.py:20 forward"))
                rank.step()

In: calls. Out: records in the layout of native/record/record.h, as hooks write them: definitions before their first
use, steps numbered as steps.h does, a pool's totals behind each of its events. Nothing here knows an analysis.

A place is "file:line" or "file:line function", a stack several of them, innermost first. Sizes are bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import pairwise

from msmemscope._kernel import text_id
from msmemscope.vocabulary import (
    EVENT_COLUMNS,
    NO_DEVICE,
    RECORD_VERSION,
    STREAM_SHIFT,
    UNKNOWN,
    CallKind,
    DeviceType,
    Flag,
    Kind,
    Pool,
    StepSource,
)

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
EVENT_NS = 10_000  # between two events of a process
READ_BYTES = 32 * KIB  # after so many a ring is read: half of the smallest
SECOND = 1_000_000_000
BEGIN_NS = 1_000 * SECOND
WALL_OFFSET_NS = 1_767_225_600 * SECOND  # the first of January 2026, less the time the machine ran
SOURCES = "/home/user/project/"

Place = str | Sequence[str]
_FIELDS = [name for name in EVENT_COLUMNS if name not in ("kind", "flags")]
_EVENT = struct.Struct("<IBBHQQqqqQQQQIIIhBB")
_POOL_OF = {DeviceType.NPU: Pool.PTA, DeviceType.CUDA: Pool.CUDA, DeviceType.CPU: Pool.HOST}


@dataclass(eq=False)
class Block:
    """What alloc() returns and free() takes."""

    ptr: int
    size: int
    pool: Pool
    device_type: DeviceType
    device: int
    flags: int


@dataclass(frozen=True)
class Sample:
    """What an agent would have measured. Bytes; None: not known."""

    ts: int
    device: str
    used: int | None
    total: int | None
    process_used: int | None
    rss: int | None
    shared: int | None
    mapped: int | None


@dataclass(eq=False)
class Process:
    """One process of the job. Made by Script.rank() and Script.process()."""

    ring: int
    rank: int = -1
    world_size: int = -1
    parent: Process | None = None
    host: str = "node0"
    program: str = "train.py"
    role: str = ""
    attempt: int = 0
    device_type: DeviceType = DeviceType.NPU
    device: int = 0
    ring_bytes: int = 4 * MIB
    now: int = BEGIN_NS
    tid: int = 1
    records: bytearray = field(default_factory=bytearray)
    samples: list[Sample] = field(default_factory=list)
    events: int = 0
    ended_by: int = 0
    """The signal that ended it."""
    ended_for_memory: int = 0
    """1: by the kernel, whose control group had reached its limit."""
    _step: int = 0
    _next_ptr: dict[tuple[int, int], int] = field(default_factory=dict)
    _free: dict[tuple[int, int, int, int], list[int]] = field(default_factory=dict)
    _used: dict[tuple[int, int, int], int] = field(default_factory=dict)
    _reserved: dict[tuple[int, int, int], int] = field(default_factory=dict)
    _defined: set[int] = field(default_factory=set)
    _ends: list[int] = field(default_factory=list)
    _is_unread: bool = False
    _stream: int | None = None

    # --- memory ---------------------------------------------------------------------------------------------

    def alloc(
        self,
        size: int,
        at: Place = "",
        *,
        pool: Pool | None = None,
        device_type: DeviceType | None = None,
        device: int | None = None,
        ptr: int | None = None,
        reserved: int | None = None,
        name: str = "",
        attr: int = 0,
        flags: int = 0,
    ) -> Block:
        """A block of the framework's pool of the process's card, unless told otherwise. ptr: where it lies; without it
        in no segment. reserved: what the pool says it holds of the driver from now on; without it as much as it ever
        gave out."""
        device_type = self.device_type if device_type is None else device_type
        pool = _POOL_OF[device_type] if pool is None else pool
        device = (0 if device_type == DeviceType.CPU else self.device) if device is None else device
        place = self._place(pool, device_type, device, size) if ptr is None else ptr
        block = Block(place, size, pool, device_type, device, flags)
        key = (pool, device_type, device)
        self._used[key] = self._used.get(key, 0) + size
        self._reserved[key] = max(self._reserved.get(key, 0), self._used[key]) if reserved is None else reserved
        word = self._stream_word if pool in (Pool.PTA, Pool.CUDA) else 0
        self._memory(Kind.MALLOC, block, stack=self.stack(at), name=self.text(name), attr=attr, aux=word)
        return block

    def free(self, block: Block, *, at: Place = "", reserved: int | None = None) -> None:
        """Gives a block back; the next of its size gets its address."""
        key = (block.pool, block.device_type, block.device)
        self._used[key] -= block.size
        if reserved is not None:
            self._reserved[key] = reserved
        self._free.setdefault((*key, block.size), []).append(block.ptr)
        self._memory(Kind.FREE, block, stack=self.stack(at))

    def on_host(self, size: int, at: Place = "", *, pinned: bool = False) -> Block:
        """A block of host memory; pinned: page-locked, of the driver."""
        pool = Pool.HAL if pinned else Pool.HOST
        return self.alloc(size, at, pool=pool, device_type=DeviceType.CPU, flags=Flag.PINNED if pinned else 0)

    def segment(self, size: int, at: Place = "") -> Block:
        """A piece that the pool gets of the driver of its card."""
        driver = Pool.CUDA_DRIVER if self.device_type == DeviceType.CUDA else Pool.HAL
        return self.alloc(size, at, pool=driver)

    def scratch(self, size: int, at: Place = "") -> None:
        """A block that is freed at once."""
        self.free(self.alloc(size, at))

    def fail(self, size: int, at: Place = "", *, pool: Pool | None = None, used: int = UNKNOWN, total: int = UNKNOWN,
             code: int = 0, name: str = "") -> None:  # fmt: skip
        """A request that is refused. used, total: of the pool, or of the device where the driver refuses."""
        self.event(
            Kind.OOM,
            size=size,
            used=used,
            total=total,
            attr=code,
            name=self.text(name),
            stack_py=self.stack(at),
            pool=_POOL_OF[self.device_type] if pool is None else pool,
            device_type=self.device_type,
            device=self.device,
        )

    # --- what the program does beside it ----------------------------------------------------------------------

    def step(self, source: StepSource = StepSource.API, at: Place = "") -> None:
        """The end of an iteration. The first one, and all before it, is step 0; no event carries the number 1."""
        self._step = self._step + 1 if self._step else 2
        self.event(Kind.STEP, attr=self._step, aux=source, stack_py=self.stack(at))

    def follow(self, other: Process) -> None:
        """Goes on at the step and the time of another process, as a worker does."""
        self._step, self.now = other._step, other.now

    def wait(self, seconds: float) -> None:
        """Nothing happens for so long."""
        self.now += int(seconds * SECOND)

    @contextmanager
    def thread(self, number: int) -> Iterator[None]:
        """What is done within is done by that thread; the main thread is 1."""
        before, self.tid = self.tid, number
        try:
            yield
        finally:
            self.tid = before

    @contextmanager
    def label(self, text: str, level: int = 5) -> Iterator[None]:
        """Whose the memory is that the thread allocates within. level: see LABEL_PUSH."""
        self.event(Kind.LABEL_PUSH, name=self.text(text), aux=level)
        try:
            yield
        finally:
            self.event(Kind.LABEL_POP, name=self.text(text), aux=level)

    @contextmanager
    def range(self, text: str) -> Iterator[None]:
        """A range of the program's own."""
        begun = self.now
        self.event(Kind.CALL, name=self.text(text), aux=CallKind.RANGE_BEGUN)
        try:
            yield
        finally:
            self.event(Kind.CALL, name=self.text(text), attr=begun, aux=CallKind.RANGE)

    def own(self, block: Block, text: str, level: int = 5) -> None:
        """Says whose a block is."""
        self.event(Kind.LABEL_ADDR, name=self.text(text), aux=level, ptr=block.ptr)

    @contextmanager
    def op(self, name: str) -> Iterator[None]:
        """An operator runs, on the stream that is current."""
        where = {} if self._stream is None else {"device_type": self.device_type, "device": self.device}
        self.event(Kind.OP_START, name=self.text(name), aux=self._stream_word, **where)
        try:
            yield
        finally:
            self.event(Kind.OP_END, name=self.text(name), aux=self._stream_word, **where)

    @contextmanager
    def stream(self, number: int) -> Iterator[None]:
        """What is done on the process's card within is on that stream of torch's. Outside of any nobody tells one."""
        before, self._stream = self._stream, number
        try:
            yield
        finally:
            self._stream = before

    @property
    def _stream_word(self) -> int:
        return 0 if self._stream is None else (self._stream + 1) << STREAM_SHIFT

    def access(self, block: Block, op: str = "aten::add", *, write: bool = False, size: int | None = None,
               unknown: bool = False) -> None:  # fmt: skip
        """An operator touches a block, or its first `size` bytes. unknown: nobody says how."""
        self.event(
            Kind.ACCESS,
            ptr=block.ptr,
            size=block.size if size is None else size,
            used=block.ptr,
            total=block.size,
            name=self.text(op),
            aux=(2 if write else 0 if unknown else 1)
            | (self._stream_word if block.device_type != DeviceType.CPU else 0),
            pool=block.pool,
            device_type=block.device_type,
            device=block.device,
        )

    def hand_over(self, block: Block) -> None:
        """Tells the pool that another stream uses a block: record_stream()."""
        with self.op("torch._ops.aten.record_stream.default"):
            stream, self._stream = self._stream, None
            self.access(block, "torch._ops.aten.record_stream.default", unknown=True)
            self._stream = stream

    def launch(self, kernel: str, *, stream: int = 0) -> None:
        """A kernel is started on the process's card."""
        place = {"device_type": self.device_type, "device": self.device}
        self.event(Kind.KERNEL_LAUNCH, name=self.text(kernel), ptr=stream, **place)

    def look(self, name: str, segments: Sequence[tuple[int, int, int]]) -> None:
        """A snapshot of the pool of the process's card. segments: stream, bytes, and bytes of it given out, which lie
        in one piece."""
        place = {"pool": _POOL_OF[self.device_type], "device_type": self.device_type, "device": self.device}
        size, used = (sum(one[at] for one in segments) for at in (1, 2))
        self.event(Kind.SNAPSHOT, name=self.text(name), used=used, total=size, ptr=used, size=size, **place)
        for number, (stream, size, used) in enumerate(segments):
            self.event(Kind.SNAPSHOT_SEGMENT, name=self.text(name), ptr=(number + 1) << 30, size=size, used=used,
                       total=size - used, attr=stream, aux=1 + (used < size), **place)  # fmt: skip

    def mark(self, text: str, *, asks: bool = False) -> None:
        """A mark of mstx; asks: of msmemscope.mark()."""
        place = {} if asks else {"device_type": self.device_type, "device": self.device}
        self.event(Kind.MARK, name=self.text(text), aux=int(asks), **place)

    def sample(self, device: str, *, used: int | None = None, total: int | None = None,
               process_used: int | None = None, rss: int | None = None, shared: int | None = None,
               mapped: int | None = None) -> None:  # fmt: skip
        """What the agent measures now. device: "cpu", "npu:0"."""
        self.samples.append(Sample(self.now, device, used, total, process_used, rss, shared, mapped))

    def meta(self, key: str, value: str) -> None:
        """Something the process says of itself."""
        self.event(Kind.META, name=self.text(key), attr=self.text(value))

    def event(self, kind: Kind, *, flags: int = 0, **values: int) -> None:
        """Any event: values are fields of EventRecord."""
        defaults = {"ts": self.now, "tid": self.tid, "step": self._step, "used": UNKNOWN, "total": UNKNOWN}
        event = {**dict.fromkeys(_FIELDS, 0), **defaults, "device": NO_DEVICE, **values}
        self.records += _EVENT.pack(_EVENT.size, kind, flags, RECORD_VERSION, *(int(event[name]) for name in _FIELDS))
        self.events += 1
        if not self._is_unread and len(self.records) - (self._ends[-1] if self._ends else 0) > READ_BYTES:
            self._ends.append(len(self.records))
        self.now += EVENT_NS

    @contextmanager
    def unread(self) -> Iterator[None]:
        """Nobody reads the ring while it is written within: what does not fit is lost, and counted."""
        self._ends.append(len(self.records))
        self._is_unread = True
        yield
        self._is_unread = False
        self._ends.append(len(self.records))

    @contextmanager
    def unwritten(self) -> Iterator[None]:
        """What is done within happens, and no record says so, nor that one is missing."""
        size, events, defined, ends = len(self.records), self.events, set(self._defined), len(self._ends)
        yield
        del self.records[size:], self._ends[ends:]
        self.events, self._defined = events, defined

    @property
    def pieces(self) -> list[memoryview]:
        """The records in pieces, of which each is written whole before it is read."""
        whole = memoryview(self.records)
        return [whole[begin:end] for begin, end in pairwise([0, *self._ends, len(whole)]) if begin < end]

    # --- definitions ------------------------------------------------------------------------------------------

    def text(self, text: str) -> int:
        """The id of a text, defined in this ring; 0 for none."""
        if not text:
            return 0
        encoded = text.encode()
        id = text_id(text)
        padded = encoded + bytes(-len(encoded) % 8)
        self._define(id, Kind.STRING, struct.pack("<QII", id, len(encoded), 0) + padded)
        return id

    def stack(self, place: Place) -> int:
        """The id of a call stack, innermost place first; 0 for none."""
        places = (place,) if isinstance(place, str) else tuple(place)
        if not any(places):
            return 0
        id = _id("\n".join(("k", *places)).encode())
        if id not in self._defined:
            frames = [self._frame(one) for one in places]
            self._define(id, Kind.STACK, struct.pack(f"<QII{len(frames)}Q", id, len(frames), 0, *frames))
        return id

    def _frame(self, place: str) -> int:
        where, _, function = place.partition(" ")
        file, _, line = where.rpartition(":")
        id = _id(b"f" + place.encode())
        names = self.text(file if file.startswith("/") else SOURCES + file), self.text(function or "main")
        self._define(id, Kind.FRAME, struct.pack("<QQQII", id, *names, int(line), 0))
        return id

    def _define(self, id: int, kind: Kind, body: bytes) -> None:
        if id not in self._defined:
            self._defined.add(id)
            self.records += struct.pack("<IBBH", 8 + len(body), kind, 0, RECORD_VERSION) + body

    def _memory(self, kind: Kind, block: Block, *, stack: int, **values: int) -> None:
        key = (block.pool, block.device_type, block.device)
        self.event(
            kind,
            flags=block.flags,
            ptr=block.ptr,
            size=block.size,
            used=self._used[key],
            total=self._reserved[key],
            stack_py=stack,
            pool=block.pool,
            device_type=block.device_type,
            device=block.device,
            **values,
        )

    def _place(self, pool: Pool, device_type: DeviceType, device: int, size: int) -> int:
        free = self._free.get((pool, device_type, device, size))
        if free:
            return free.pop()
        # Far apart, as address ranges of pools and cards are: no block lies in another.
        begin = (1 + pool) << 44 | device_type << 40 | (device + 1) << 36
        ptr = self._next_ptr.get((begin, 0), begin)
        self._next_ptr[begin, 0] = ptr + (size + 511) // 512 * 512
        return ptr


class Script:
    """A job that is being written."""

    def __init__(self) -> None:
        self.processes: list[Process] = []
        self.config: dict[str, object] = {}
        """What run.json says it was recorded with, where that is not the default."""
        self.options: dict[str, dict[str, object]] = {}
        """Options of analyses, by name."""

    def ranks(self, count: int, *, device: str = "npu", **identity: object) -> list[Process]:
        """Ranks 0 to count - 1, eight to a host, with a card each. device: npu, cuda or cpu."""
        made = []
        for rank in range(count):
            facts = {"rank": rank, "world_size": count, "host": f"node{rank // 8}", "device": rank % 8, **identity}
            made.append(self.process(device_type=DeviceType[device.upper()], **facts))
        return made

    def rank(self, *, device: str = "npu", **identity: object) -> Process:
        """The one rank of a job of one."""
        return self.ranks(1, device=device, **identity)[0]

    def process(self, **identity: object) -> Process:
        """Any process: fields of `Process`."""
        made = Process(ring=_id(f"ring {len(self.processes)}".encode()), **identity)  # type: ignore[arg-type]
        self.processes.append(made)
        return made

    def worker(self, parent: Process, **identity: object) -> Process:
        """A process that another one has started, such as a DataLoader's."""
        facts = {name: getattr(parent, name) for name in ("rank", "world_size", "host", "program", "device", "now")}
        return self.process(**{**facts, "device_type": parent.device_type, "parent": parent, **identity})


def _id(content: bytes) -> int:
    return int.from_bytes(blake2b(content, digest_size=8).digest(), "little") or 1
