"""The coordinator: knows the whole job. Roll call, losses, and run.json.

In: what the shard knows of its rings, and the session. Out: run.json, replaced whole each time, so a reader never
sees half of it. docs/formats.md describes its keys.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as version_of
from pathlib import Path
from typing import Any

import pyarrow as pa

from msmemscope.aggregate.shard import IDENTITY_FIELDS, Ring, Shard
from msmemscope.aggregate.store import write_parquet
from msmemscope.tables.run_files import SCHEMA_VERSION

LOSSES_SCHEMA = pa.schema(
    [("ring", pa.uint64()), ("rank", pa.int32()), ("pid", pa.int32()), ("what", pa.string()), ("count", pa.int64())]
)


def versions() -> dict[str, str]:
    """What is installed in the environment that the tool itself runs in, which is usually the ranks' too."""
    found = {"python": platform.python_version(), "kernel": platform.release()}
    for name in ("torch", "torch_npu", "mindspore", "numpy", "pyarrow", "pyzmq"):
        with suppress(PackageNotFoundError):
            found[name] = version_of(name)
    return found


class Coordinator:
    """Writes run.json of one run from one shard."""

    def __init__(self, run: Path, session: Mapping[str, Any], version: str, shard: Shard) -> None:
        self._run = run
        self._shard = shard
        self._info: dict[str, Any] = {
            "schema": SCHEMA_VERSION,
            "session": session["session"],
            "version": version,
            "versions": versions(),
            "config": session.get("config", {}),
            "mode": session.get("mode", "launched"),
            "hosts": [session["host"]] if session.get("host") else [],
            "nodes": session.get("nodes"),
            "program": session.get("program", []),
            "started_wall_ns": session.get("created_wall_ns", 0),
            "ended_wall_ns": None,
            "exit_status": None,
        }
        self.drained = False
        self.cost_s = 0.0  # of the last time that run.json was written
        self._ended = self._finished = False
        self._writing = threading.Lock()

    def write(self, *, finished: bool = False, **more: Any) -> None:
        """Replaces run.json. more: further keys, kept from then on. Any thread may call it, while another works on the
        shard: every fact is read once, and newer than needed is as good."""
        with self._writing:
            begun = time.monotonic()
            self._info.update(more)
            self._finished |= finished
            rings = sorted(self._shard.rings.items(), key=self._order)
            document = {
                **self._info,
                "processes": [self._process(id, ring) for id, ring in rings],
                "roll_call": roll_call(self._shard),
                "losses": losses(self._shard, ended=self._ended),
                "agents": {
                    "expected": self._shard.expected_agents,
                    "heard": {id: asdict(agent) for id, agent in list(self._shard.agents.items())},
                },
                "damaged_segments": {name: asdict(one) for name, one in self._shard.losses.damaged_segments.items()},
                "usage": asdict(self._shard.usage),
                "drained": self.drained,
                "finished": self._finished,
            }
            temporary = self._run / "run.json.tmp"
            file = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            with open(file, "w", encoding="utf-8") as out:
                out.write(as_text(document))
            os.replace(temporary, self._run / "run.json")
            self.cost_s = time.monotonic() - begun

    def remove_run(self) -> None:
        """Removes the run directory, in which nothing stands, and not while another thread replaces run.json."""
        with self._writing:
            shutil.rmtree(self._run)

    def end(self, finish: Mapping[str, Any]) -> None:
        """Notes how the program ended, and that no agent is waited for any more. finish: what the supervisor says of
        the end, possibly nothing."""
        self._ended = True
        self.write(
            ended_wall_ns=finish.get("ended_wall_ns") or time.time_ns(),
            exit_status=finish.get("exit_status"),
        )

    def write_losses(self) -> None:
        """losses.parquet: one row per ring and thing that is missing."""
        rows = []
        for id, ring in self._shard.rings.items():
            found = {f"dropped {kind}": n for kind, n in ring.lost.items()}
            found |= {"holes": ring.stored.holes, "invalid records": ring.stored.invalid}
            found["missing bytes"] = missing_bytes(ring)
            for what, count in found.items():
                if count:
                    rows.append(
                        {"ring": id, "rank": ring.rank, "pid": ring.identity["pid"], "what": what, "count": count}
                    )
        write_parquet(pa.Table.from_pylist(rows, LOSSES_SCHEMA), self._run / "losses.parquet")

    @staticmethod
    def _order(entry: tuple[int, Ring]) -> tuple[int, int, int]:
        id, ring = entry
        return ring.identity["rank"], ring.identity["created_ns"], id

    @staticmethod
    def _process(id: int, ring: Ring) -> dict[str, Any]:
        entry = {name: ring.identity[name] for name in IDENTITY_FIELDS if name != "parent_ring_id"}
        return {
            "ring": f"{id:016x}",
            "parent_ring": f"{ring.identity['parent_ring_id']:016x}",
            **entry,
            "rank": ring.rank,
            "lost": ring.lost,
            "visible_devices": ring.meta.visible_devices,
            "not_seen": ring.meta.not_seen,
            "holders": list(ring.meta.holders),
            "events": ring.stored.rows,
            "first_event_ns": ring.stored.first_ts,
            "last_event_ns": ring.stored.last_ts,
            "stored_to": ring.expected,
            "written_to": ring.end or None,
            "final": ring.final,
        }


def note_unread(run: Path, names: Sequence[str], rows: int) -> None:
    """Adds to the run.json of a finished run what a reader of it could not read."""
    path = run / "run.json"
    document = json.loads(path.read_text(encoding="utf-8"))
    found = document["losses"]
    found["skipped_part_names"] = sorted({*found["skipped_part_names"], *names})
    found["skipped_parts"] = len(found["skipped_part_names"])
    found["unreadable_rows"] = max(found.get("unreadable_rows", 0), rows)
    temporary = run / "run.json.tmp"
    with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "w") as out:
        out.write(as_text(document))
    os.replace(temporary, path)


def as_text(document: Mapping[str, Any]) -> str:
    """JSON with a line per key, and one per entry of a list: as fast as json is without line breaks, and legible."""
    lines = []
    for key, value in document.items():
        if isinstance(value, list) and value and isinstance(value[0], dict):
            body = "[\n  " + ",\n  ".join(map(json.dumps, value)) + "\n ]"
        else:
            body = json.dumps(value)
        lines.append(f" {json.dumps(key)}: {body}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def roll_call(shard: Shard) -> list[dict[str, Any]]:
    """Every rank of the job, also those that never reported. last_event_ns: CLOCK_MONOTONIC of its host."""
    rings = list(shard.rings.values())  # at once: another thread may announce one meanwhile
    world = max((int(ring.identity["world_size"]) for ring in rings), default=0)
    calls = {
        rank: {"rank": rank, "reported": False, "last_event_ns": None, "events": 0}
        for rank in range(min(world, 1 << 20))
    }
    for ring in list(shard.rings.values()):
        if ring.rank is None:
            continue
        empty = {"rank": ring.rank, "reported": False, "last_event_ns": None, "events": 0}
        call = calls.setdefault(ring.rank, empty)
        call["reported"] = True
        call["events"] = int(call["events"] or 0) + ring.stored.rows
        if ring.stored.rows:
            call["last_event_ns"] = max(int(call["last_event_ns"] or 0), ring.stored.last_ts)
    return [calls[rank] for rank in sorted(calls)]


def losses(shard: Shard, *, ended: bool = False) -> dict[str, Any]:
    """Everything that the tables do not hold although it happened. All counts are 0 in a perfect run. ended: an agent
    that was not heard of, or did not say bye, never will."""
    agents = list(shard.agents.values())
    left_out: dict[str, int] = {}
    for agent in agents:
        for what, n in agent.left_out.items():
            left_out[what] = left_out.get(what, 0) + n
    gaps: dict[str, int] = {}
    for ring in list(shard.rings.values()):
        for kind, n in ring.lost.items():
            gaps[kind] = gaps.get(kind, 0) + n
    rings = list(shard.rings.values())
    return {
        **left_out,
        "agents_not_heard": max((shard.expected_agents or 0) - len(agents), 0) if ended else 0,
        "agents_cut_off": sum(not agent.left for agent in agents) if ended else 0,
        "rings_cut_off": sum(not ring.final for ring in rings) if ended else 0,
        "gaps": gaps,
        "holes": sum(ring.stored.holes for ring in rings),
        "invalid_records": sum(ring.stored.invalid for ring in rings),
        "missing_bytes": sum(missing_bytes(ring) for ring in rings),
        "invalid_batches": shard.losses.refused_messages,
        "damaged_journal_frames": sum(damage.frames for damage in shard.losses.damaged_segments.values()),
        "damaged_journal_bytes": sum(damage.bytes for damage in shard.losses.damaged_segments.values()),
        "deleted_events": shard.losses.deleted_events,
        "skipped_parts": len(shard.losses.skipped_parts),
        "skipped_part_names": shard.losses.skipped_parts,
        "unreadable_rows": shard.losses.unreadable_rows,
    }


def missing_bytes(ring: Ring) -> int:
    """Bytes that were written to a ring, as far as is known, and stand nowhere."""
    return max(ring.expected, ring.end) - sum(end - start for start, end in ring.stored.ranges)
