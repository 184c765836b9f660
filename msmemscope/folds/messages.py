"""Tables and blocks of rings as bytes: what a shard tells whoever merges.

One msgpack map per ring for its tables (pack), and one for its blocks (pack_held); a table is a map of its columns,
each the raw little-endian bytes of its values. What comes in is checked against the tables that a fold makes, so that a
peer that means ill cannot hand in a column of another type, length or name. Nothing is ever unpickled.
"""

from __future__ import annotations

from dataclasses import asdict, fields
from functools import cache
from typing import Any

import msgpack
import numpy as np

from msmemscope.folds.incidents import Failure, Incident
from msmemscope.folds.moments import DTYPES, MAX_SPANS, Moments, Span
from msmemscope.folds.ring_fold import RingFold
from msmemscope.folds.ring_tables import HeldBlocks, RingTables, Table
from msmemscope.folds.segments import Mappings, PoolSpace
from msmemscope.folds.snapshots import MAX_SNAPSHOTS, PoolSnapshot
from msmemscope.folds.watches import Change, Look, Near, Watched, Watches

LARGEST = 1 << 30  # bytes of one message
_TABLES = (
    "sites",
    "steps",
    "anomalies",
    "sums",
    "ages",
    "begins",
    "owners",
    "owner_sums",
    "owner_peaks",
    "owned_site_sums",
    "owned_site_peaks",
    "owner_changes",
    "pool_peaks",
    "site_peaks",
    "phases",
    "phase_owners",
    "inefficiencies",
    "floors",
)
_OF_SITES = ("sums", "ages", "site_peaks", "owned_site_sums", "owned_site_peaks")
_LISTS = ("incidents", "snapshots", "watches", "moments")
_FACTS = tuple(one.name for one in fields(RingTables) if one.name not in (*_TABLES, *_LISTS))
_INCIDENT = (
    "ring",
    "tid",
    "device_type",
    "device",
    "step",
    "more_failures",
    "latest_ts",
    "recovered",
    "piece_bytes",
    "driver_bytes",
)

_SPAN = tuple(one.name for one in fields(Span) if one.name != "rows")


def pack(tables: RingTables) -> bytes:
    """One ring's tables as a message."""
    message: dict[str, Any] = {name: getattr(tables, name) for name in _FACTS}
    message |= {name: _columns(getattr(tables, name)) for name in _TABLES}
    message["incidents"] = [
        {
            **{name: getattr(one, name) for name in _INCIDENT},
            "failures": [asdict(failure) for failure in one.failures],
            "spaces": [asdict(space) for space in one.spaces],
            "pool_totals": list(one.pool_totals.items()),
            "owners": list(one.owners.items()),
            "alive": _columns(one.alive),
        }
        for one in tables.incidents
    ]
    message["snapshots"] = [asdict(one) for one in tables.snapshots]
    message["watches"] = asdict(tables.watches)
    message["moments"] = {
        "left_out": tables.moments.left_out,
        "earlier": tables.moments.earlier,
        "spans": [
            {**{name: getattr(one, name) for name in _SPAN}, "rows": _columns(one.rows)} for one in tables.moments.spans
        ],
    }
    data: bytes = msgpack.packb(message)
    return data


def unpack(data: bytes) -> RingTables:
    """The same again. ValueError for what no shard sends."""
    try:
        message = _map(data)
        facts: dict[str, Any] = {name: _number(message[name]) for name in _FACTS}
        facts |= {name: _table(name, message[name], _empty()[name]) for name in _TABLES}
        sites = len(facts["sites"]["pool"])
        for name in _OF_SITES:
            if len(facts[name]["site"]) and int(facts[name]["site"].max()) >= sites:
                raise ValueError(f"{name}: a row of a site that is none of {sites}")
        phases = len(facts["phases"]["pool"])
        if len(facts["phase_owners"]["row"]) and int(facts["phase_owners"]["row"].max()) >= phases:
            raise ValueError(f"phase_owners: a row of a phase that is none of {phases}")
        snapshots = _listed(message["snapshots"])
        if len(snapshots) > MAX_SNAPSHOTS:
            raise ValueError(f"{len(snapshots)} snapshots; at most {MAX_SNAPSHOTS} are taken")
        return RingTables(
            **facts,
            incidents=tuple(map(_incident, _listed(message["incidents"]))),
            snapshots=tuple(PoolSnapshot(**{name: _number(value) for name, value in one.items()}) for one in snapshots),
            watches=_watches(message["watches"]),
            moments=_moments(message["moments"]),
        )
    except (KeyError, TypeError, AttributeError, RecursionError, msgpack.UnpackException) as error:
        raise ValueError(f"no tables of a ring: {error!r:.200}") from error


def pack_held(held: HeldBlocks) -> bytes:
    """One ring's blocks as a message."""
    mappings = [[*at, *range_] for at, range_ in held.mappings.ranges.items()]
    data: bytes = msgpack.packb(
        {"ring": held.ring, "step": held.step, "blocks": _columns(held.blocks), "mappings": mappings,
         "devices": sorted(held.mappings.devices)}
    )  # fmt: skip
    return data


def unpack_held(data: bytes) -> HeldBlocks:
    """The same again. ValueError for what no shard sends."""
    try:
        message = _map(data)
        mappings = [[_number(value) for value in _listed(one)] for one in _listed(message["mappings"])]
        ranges = {(device, start): (size, handle, kind) for device, start, size, handle, kind in mappings}
        return HeldBlocks(
            _number(message["ring"]),
            _table("blocks", message["blocks"], _empty()["held"]),
            _number(message["step"]),
            Mappings(ranges, {_number(device) for device in _listed(message["devices"])}),
        )
    except (KeyError, TypeError, AttributeError, RecursionError, msgpack.UnpackException) as error:
        raise ValueError(f"no blocks of a ring: {error!r:.200}") from error


@cache  # arrays without rows, which nobody can change
def _empty() -> dict[str, Table]:
    """Of every table a fold without events makes it: names and types of the columns."""
    fold = RingFold(0)
    tables = fold.tables()
    return {name: getattr(tables, name) for name in _TABLES} | {
        "alive": _alive(fold),
        "held": fold.held().blocks,
    }


def _alive(fold: RingFold) -> Table:
    return fold.held().blocks | {"segment_allocation_id": np.zeros(0, np.uint64)}


def _map(data: bytes) -> dict[str, Any]:
    if len(data) > LARGEST:
        raise ValueError(f"a message of {len(data)} bytes; at most {LARGEST} are taken")
    message = msgpack.unpackb(data, strict_map_key=False, max_bin_len=LARGEST, max_ext_len=0)
    if not isinstance(message, dict):
        raise TypeError(f"no map but {type(message).__name__}")
    return message


def _columns(table: Table) -> dict[str, Any]:
    return {name: column if isinstance(column, list) else column.tobytes() for name, column in table.items()}


def _table(what: str, columns: dict[str, Any], like: Table) -> Table:
    if set(columns) != set(like):
        raise ValueError(f"{what}: columns are {sorted(map(str, columns))}")
    table: Table = {}
    for name, model in like.items():
        column = columns[name]
        if isinstance(model, list):
            if not isinstance(column, list) or not all(isinstance(text, str) for text in column):
                raise ValueError(f"{what}.{name} is no list of texts")
            table[name] = column
            continue
        if not isinstance(column, bytes) or len(column) % model.dtype.itemsize:
            raise ValueError(f"{what}.{name} is no column of {model.dtype}")
        table[name] = np.frombuffer(column, model.dtype)
    if len({len(column) for column in table.values()}) > 1:
        raise ValueError(f"{what}: columns of different lengths")
    return table


def _incident(message: dict[str, Any]) -> Incident:
    facts: dict[str, Any] = {
        name: message[name] if name == "recovered" else _number(message[name]) for name in _INCIDENT
    }
    if not isinstance(facts["recovered"], bool) or not message["failures"]:
        raise ValueError("an incident without failures, or that recovered in its own way")
    return Incident(
        **facts,
        failures=[
            Failure(**{name: _number(value) for name, value in one.items()}) for one in _listed(message["failures"])
        ],
        spaces=tuple(
            PoolSpace(**{name: _number(value) for name, value in one.items()}) for one in _listed(message["spaces"])
        ),
        pool_totals={_number(pool): _number(total) for pool, total in _listed(message["pool_totals"])},
        owners={_number(owner): _number(size) for owner, size in _listed(message["owners"])},
        alive=_table("alive", message["alive"], _empty()["alive"]),
    )


def _moments(message: dict[str, Any]) -> Moments:
    spans = _listed(message["spans"])
    if len(spans) > MAX_SPANS:
        raise ValueError(f"{len(spans)} spans between marks; at most {MAX_SPANS} are taken")
    like = {name: np.zeros(0, dtype) for name, dtype in DTYPES.items()}
    return Moments(
        tuple(
            Span(**{name: _number(one[name]) for name in _SPAN}, rows=_table("span", one["rows"], like))
            for one in spans
        ),
        _number(message["left_out"]),
        _number(message["earlier"]),
    )


def _watches(message: dict[str, Any]) -> Watches:
    watched = tuple(
        Watched(
            **{name: _number(value) for name, value in one.items() if name not in ("began", "by_command")},
            began=_look(one["began"]),
            by_command=bool(one["by_command"]),
        )
        for one in _listed(message["watched"])
    )
    changes = tuple(
        Change(
            **{name: _number(one[name]) for name in ("watch", "first", "bytes")},
            before=_look(one["before"]),
            after=_look(one["after"]),
            written=tuple(map(_near, _listed(one["written"]))),
            beside=tuple(map(_near, _listed(one["beside"]))),
        )
        for one in _listed(message["changes"])
    )
    if any(not 0 <= one.watch < len(watched) for one in changes):
        raise ValueError("a change of a block that is not watched")
    return Watches(watched, changes, _number(message["left_out"]))


def _look(message: dict[str, Any]) -> Look:
    return Look(**{name: _number(value) for name, value in message.items()})


def _near(message: dict[str, Any]) -> Near:
    return Near(**{name: _number(value) for name, value in message.items()})


def _listed(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError(f"{value!r:.40} is no list")
    return value


def _number(value: Any) -> int:
    if type(value) is not int or not -(1 << 63) <= value < 1 << 64:
        raise ValueError(f"{value!r:.40} is no number")
    return value
