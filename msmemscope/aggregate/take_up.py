"""A run that an earlier aggregator left: its shard and coordinator again, and the recovery of one that has ended.

In: run.json, parts and journal of a run directory, perhaps rings that were left unread. Out: shard and coordinator that
go on where the earlier ones ended.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

from msmemscope.aggregate.coordinator import Coordinator
from msmemscope.aggregate.drain import drain
from msmemscope.aggregate.finishing import read_finish, write_tables
from msmemscope.aggregate.folding import Folding
from msmemscope.aggregate.life_parts import FOLDER as LIVE_BLOCKS
from msmemscope.aggregate.run_place import lock_run
from msmemscope.aggregate.shard import DEFAULT_ROLL_ROWS, Shard
from msmemscope.collect.session import FINISH
from msmemscope.collect.unsaved import find
from msmemscope.errors import MemscopeError
from msmemscope.wire.reports import AgentReport, Damage, JobReport, Losses, UsageFacts


def recover(run: Path) -> bool:
    """Brings what stands only in the journal of an ended run, or in rings that were left unread, into its tables, for
    `msmemscope analyze`. Returns whether there was anything; MemscopeError when the run is still being written or
    cannot be."""
    unsaved = find(run)
    if not unsaved and not (run / "journal").is_dir():
        return False
    lock = lock_run(run)
    try:
        before = json.loads((run / "run.json").read_text(encoding="utf-8"))
        hosts = before.get("hosts") or [""]
        session = {"session": before["session"], "config": before["config"], "program": before["program"],
                   "host": hosts[0], "created_wall_ns": before["started_wall_ns"],
                   "mode": before.get("mode", "launched"), "nodes": before.get("nodes")}  # fmt: skip
        shard, coordinator = take_up(run, session, before)
        of_the_run = ("exit_status", "interrupted", "ended_wall_ns", "version", "versions")  # not of who recovers it
        kept = {name: before[name] for name in of_the_run if name in before}
        for directory in unsaved:
            found = read_session(directory)
            found.pop("agent", None)  # how an agent works is not for a run directory to say
            if found["session"] != session["session"] or not drain(directory, found, shard):
                raise MemscopeError(f"{run}: the records in {directory} cannot be stored: make room and try again")
            coordinator.drained = True
            kept |= read_finish(directory / FINISH)
        write_tables(run, shard, coordinator)
        shutil.rmtree(run / LIVE_BLOCKS, ignore_errors=True)
        shard.tidy()
        for directory in unsaved:
            shutil.rmtree(directory, ignore_errors=True)
        coordinator.write(finished=True, **kept)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise MemscopeError(f"{run}: its journal cannot be recovered: {error}") from error
    finally:
        os.close(lock)
    return True


def take_up(
    run: Path, session: dict[str, Any], before: dict[str, Any], folding: Folding | None = None
) -> tuple[Shard, Coordinator]:
    """Shard and coordinator of a run, with what an earlier aggregator left."""
    settings = session.get("aggregator", {})
    expected = session.get("agents", 1)  # where nobody says it: the supervisor starts one agent and one aggregator
    shard = Shard(
        run,
        session["session"],
        int(settings.get("roll_rows", DEFAULT_ROLL_ROWS)),
        None if expected is None else int(expected),
        folding,
    )
    shard.agents = agents_before(before)
    shard.losses = losses_before(before)
    shard.usage = UsageFacts(**before.get("usage", {}))
    shard.recover(before.get("processes", []))
    coordinator = Coordinator(run, session, _version(), lambda: JobReport([shard.report()]))
    shard.note = coordinator.write
    coordinator.drained = shard.all_agents_left or bool(before.get("drained"))
    return shard, coordinator


def agents_before(before: dict[str, Any]) -> dict[str, AgentReport]:
    """The agents that an earlier aggregator heard of, from its run.json."""
    return {
        str(id): AgentReport(
            str(one["host"]),
            bool(one["left"]),
            {str(what): int(n) for what, n in one["left_out"].items()},
            int(one.get("told_ns", 0)),
        )
        for id, one in before.get("agents", {}).get("heard", {}).items()
    }


def losses_before(before: dict[str, Any]) -> Losses:
    """What an earlier aggregator counted, from its run.json."""
    lost = before.get("losses", {})
    return Losses(
        refused_messages=int(lost.get("invalid_batches", 0)),
        damaged_segments={
            str(name): Damage(int(one["frames"]), int(one["bytes"]))
            for name, one in before.get("damaged_segments", {}).items()
        },
        skipped_parts=list(lost.get("skipped_part_names", [])),
        unreadable_rows=int(lost.get("unreadable_rows", 0)),
        unsized_devices=int(lost.get("unsized_devices", 0)),
    )


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("msmemscope")
    except PackageNotFoundError:
        return "unknown"


def read_session(session_dir: Path) -> dict[str, Any]:
    """session.json, or MemscopeError."""
    path = session_dir / "session.json"
    try:
        session = json.loads(path.read_text(encoding="utf-8"))
        for key in ("session", "run", "endpoint"):
            if not isinstance(session[key], str):
                raise TypeError(f"{key} is not a text")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise MemscopeError(f"{path} cannot be used: {error}") from error
    found: dict[str, Any] = session
    return found
