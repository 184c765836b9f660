"""The coordinator: knows the whole job. Roll call, losses, and run.json.

In: the merged reports of the shards, and the session. Out: run.json, replaced whole each time, so a reader never
sees half of it. docs/formats.md describes its keys.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as version_of
from pathlib import Path
from typing import Any

import pyarrow as pa

from msmemscope.aggregate.roll_call import losses, roll_call
from msmemscope.aggregate.store import write_parquet
from msmemscope.tables.run_files import SCHEMA_VERSION
from msmemscope.wire.messages import IDENTITY_FIELDS
from msmemscope.wire.reports import JobReport, RingReport

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
    """Writes run.json of one run. ask: for what its shards have said, merged; any thread may."""

    def __init__(self, run: Path, session: Mapping[str, Any], version: str, ask: Callable[[], JobReport]) -> None:
        self._run = run
        self.ask = ask
        agents = session.get("agents", 1)  # where nobody says it: the supervisor starts one agent and one aggregator
        self._expected_agents = None if agents is None else int(agents)
        self._info: dict[str, Any] = {
            "schema": SCHEMA_VERSION,
            "session": session["session"],
            "version": version,
            "versions": versions(),
            "config": session.get("config", {}),
            "mode": session.get("mode", "launched"),
            "hosts": [],
            "nodes": session.get("nodes"),
            "program": session.get("program", []),
            "started_wall_ns": session.get("created_wall_ns", 0),
            "ended_wall_ns": None,
            "exit_status": None,
            "interrupted": False,
        }
        self._host = str(session.get("host") or "")
        self.drained = False
        self.cost_s = 0.0  # of the last time that run.json was written
        self._ended = self._finished = False
        self._writing = threading.Lock()

    def write(self, *, finished: bool = False, **more: Any) -> None:
        """Replaces run.json. more: further keys, kept from then on. Any thread may call it."""
        with self._writing:
            begun = time.monotonic()
            self._info.update(more)
            self._finished |= finished
            report = self.ask()
            document = {
                **self._info,
                "hosts": self._hosts(report),
                "processes": [_process(id, ring) for id, ring in report.rings.items()],
                "roll_call": roll_call(report),
                "losses": losses(report, self._expected_agents, ended=self._ended),
                "agents": {
                    "expected": self._expected_agents,
                    "heard": {id: asdict(agent) for id, agent in report.agents.items()},
                },
                "damaged_segments": {name: asdict(one) for name, one in report.losses.damaged_segments.items()},
                "usage": asdict(report.usage),
                "drained": self.drained,
                "finished": self._finished,
            }
            temporary = self._run / "run.json.tmp"
            file = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            with open(file, "w", encoding="utf-8") as out:
                out.write(as_text(document))
            os.replace(temporary, self._run / "run.json")
            self.cost_s = time.monotonic() - begun

    def try_write(self) -> None:
        """run.json now and then, for whoever looks; a full disk is the roll's business to report."""
        with suppress(OSError):
            self.write()

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
            interrupted=finish.get("interrupted") is True,
        )

    def write_losses(self) -> None:
        """losses.parquet: one row per ring and thing that is missing."""
        rows = []
        for id, ring in self.ask().rings.items():
            found = {f"dropped {kind}": n for kind, n in ring.lost.items()}
            found |= {"holes": ring.stored.holes, "invalid records": ring.stored.invalid}
            found["missing bytes"] = ring.missing_bytes
            for what, count in found.items():
                if count:
                    rows.append(
                        {"ring": id, "rank": ring.rank, "pid": ring.identity["pid"], "what": what, "count": count}
                    )
        write_parquet(pa.Table.from_pylist(rows, LOSSES_SCHEMA), self._run / "losses.parquet")

    def _hosts(self, report: JobReport) -> list[str]:
        """The machine on which the job was started, and those of its agents and processes."""
        others = {str(ring.identity["host"]) for ring in report.rings.values()}
        others |= {agent.host for agent in report.agents.values()}
        return [host for host in (self._host, *sorted(others - {self._host})) if host]


def _process(id: int, ring: RingReport) -> dict[str, Any]:
    entry = {name: ring.identity[name] for name in IDENTITY_FIELDS if name != "parent_ring_id"}
    return {
        "ring": f"{id:016x}",
        "parent_ring": f"{ring.identity['parent_ring_id']:016x}",
        **entry,
        "rank": ring.rank,
        "lost": dict(ring.lost),
        "visible_devices": ring.visible_devices,
        "not_seen": dict(ring.not_seen),
        "holders": list(ring.holders),
        "parallel": ring.parallel,
        "address_space": ring.address_space,
        "events": ring.stored.rows,
        "first_event_ns": ring.stored.first_ts,
        "last_event_ns": ring.stored.last_ts,
        "stored_to": ring.stored_to,
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
