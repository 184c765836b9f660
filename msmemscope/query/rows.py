"""Rows of blocks and events as people read them: devices, pools and kinds by name, ids as texts, stacks as lines.

In: batches as they are stored. Out: batches of the same rows with the columns that are asked for. A text is made once
for each number of a batch; frames and strings are read once for a run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from msmemscope.analysis.findings import device_name, pool_name
from msmemscope.analysis.live_lines import line_of
from msmemscope.errors import UsageError
from msmemscope.tables.run import Run
from msmemscope.vocabulary import STREAM_SHIFT, Kind

PLACE = "place"
"""`file:line` of the user's own code in the call stack, the native stack's where there is no other; "" for none."""

STREAM = "stream"
"""Torch's number of the stream of an operator, an access or an allocation on a card; null where nobody told."""

_TEXT = pa.dictionary(pa.int32(), pa.string())
_NAMED = {"device": ("device_type", "device"), "pool": ("pool", "device_type"), PLACE: ("stack_py", "stack_c")}
"""Readable columns and what they are made of."""

_ON_STREAMS = pa.array([Kind.MALLOC, Kind.ACCESS, Kind.OP_START, Kind.OP_END], pa.uint8())


class Readable:
    """The columns of one kind of rows. schema: as stored. texts: of its columns, those that hold string ids."""

    def __init__(self, run: Run, schema: pa.Schema, texts: Iterable[str]) -> None:
        self._run = run
        self._schema = schema
        self._texts = {name for name in texts if name in schema.names}
        self._makers: dict[str, Callable[[int, int], str]] = {
            "device": device_name,
            "pool": pool_name,
            PLACE: self._place,
        }

    @property
    def names(self) -> list[str]:
        """Of all columns."""
        stored = [name for name in self._schema.names if name != "device_type"]
        return [*stored, PLACE, *([STREAM] if self._makes_streams else [])]

    @property
    def _makes_streams(self) -> bool:
        return "aux" in self._schema.names

    def chosen(self, columns: Sequence[str] | None) -> list[str]:
        """The columns that are asked for; None: all. UsageError for one that there is not."""
        chosen = self.names if columns is None else list(columns)
        if strange := [name for name in chosen if name not in self.names]:
            raise UsageError(f"unknown column {strange[0]!r}; there are {', '.join(self.names)}")
        return chosen

    def needed(self, columns: Sequence[str]) -> list[str]:
        """The stored columns that these are made of."""
        made_of = {**_NAMED, **({STREAM: ("kind", "aux")} if self._makes_streams else {})}
        return list(dict.fromkeys(part for name in columns for part in made_of.get(name, (name,))))

    def schema(self, columns: Sequence[str]) -> pa.Schema:
        """Of what made() returns."""
        return pa.schema([(name, self._type(name)) for name in columns])

    def made(self, batch: pa.RecordBatch, columns: Sequence[str]) -> pa.RecordBatch:
        """The rows of a stored batch that has what they need."""
        return pa.RecordBatch.from_arrays(
            [self._column(batch, name).cast(self._type(name)) for name in columns], schema=self.schema(columns)
        )

    def _type(self, name: str) -> pa.DataType:
        if name in _NAMED or name in self._texts or name == "kind":
            return _TEXT
        if name == STREAM:
            return pa.uint32()
        return self._schema.field(name).type

    def _column(self, batch: pa.RecordBatch, name: str) -> pa.Array:
        if name in _NAMED:
            first, second = (batch[part].cast(pa.int64(), safe=False) for part in _NAMED[name])
            return _by_pair(first, second, self._makers[name])
        if name == STREAM and self._makes_streams:
            told = pc.shift_right(batch["aux"], pa.scalar(STREAM_SHIFT, pa.uint32()))
            is_told = pc.and_(pc.is_in(batch["kind"], _ON_STREAMS), pc.greater(told, 0))
            return pc.if_else(is_told, pc.subtract(told, pa.scalar(1, pa.uint32())), None)
        if name == "kind":
            return _by_number(batch[name], _kind_name)
        return _by_number(batch[name], self._run.string) if name in self._texts else batch[name]

    def _place(self, stack_py: int, stack_c: int) -> str:
        frame = line_of(self._run.stack(stack_py % (1 << 64)) or self._run.stack(stack_c % (1 << 64)))
        return "" if frame is None else f"{frame.file}:{frame.line}"


def _by_number(column: pa.Array, text_of: Callable[[int], str]) -> pa.Array:
    encoded = column.dictionary_encode()
    texts = pa.array([text_of(number) for number in encoded.dictionary.to_pylist()], pa.string())
    return pa.DictionaryArray.from_arrays(encoded.indices, texts)


def _by_pair(first: pa.Array, second: pa.Array, text_of: Callable[[int, int], str]) -> pa.Array:
    one, other = first.dictionary_encode(), second.dictionary_encode()
    width = max(len(other.dictionary), 1)
    pairs = pc.add(pc.multiply(one.indices.cast(pa.int64()), width), other.indices.cast(pa.int64())).dictionary_encode()
    firsts, seconds = one.dictionary.to_pylist(), other.dictionary.to_pylist()
    texts = [text_of(firsts[pair // width], seconds[pair % width]) for pair in pairs.dictionary.to_pylist()]
    return pa.DictionaryArray.from_arrays(pairs.indices, pa.array(texts, pa.string()))


def _kind_name(number: int) -> str:
    try:
        return Kind(number).name
    except ValueError:
        return str(number)
