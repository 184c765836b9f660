"""The aggregator process of one machine: one shard and the coordinator behind one socket.

``python -m msmemscope.aggregate.server SESSION_DIR``. Started and, when it dies, restarted by the supervisor. It
makes the run directory, serves the agents until each has said bye (or SIGTERM asks for what there is), rolls
everything into tables, writes the outputs and exits: 0, or 4 after one line on stderr.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import Any

import zmq

from msmemscope.aggregate.coordinator import Coordinator, losses
from msmemscope.aggregate.shard import DEFAULT_ROLL_ROWS, Shard
from msmemscope.aggregate.wire import MAX_MESSAGE_BYTES
from msmemscope.errors import MemscopeError

MIN_FREE_BYTES = 64 << 20
GIVE_UP_S = 60.0  # how long a full disk is waited for at the end
POLL_MS = 50


def main(arguments: list[str]) -> int:
    if len(arguments) != 1:
        print("usage: python -m msmemscope.aggregate.server SESSION_DIR", file=sys.stderr)
        return 2
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the program; the supervisor tells us what follows
    try:
        return serve(Path(arguments[0]))
    except MemscopeError as error:
        print(f"[msmemscope] aggregator: {error}", file=sys.stderr)
        return error.exit_status
    except (OSError, zmq.ZMQError) as error:
        print(f"[msmemscope] aggregator: {error}", file=sys.stderr)
        return MemscopeError.exit_status


def serve(session_dir: Path) -> int:
    """Everything from start to exit."""
    session = read_session(session_dir)
    lock = _lock(session_dir / "aggregator.pid")  # held until this process ends, however it ends
    run = Path(session["run"])
    before = open_run(run, session["session"])
    if before.get("finished"):
        return 0
    settings = session.get("aggregator", {})
    shard = Shard(run, session["session"], int(settings.get("roll_rows", DEFAULT_ROLL_ROWS)))
    shard.losses.refused_messages = int(before.get("losses", {}).get("invalid_batches", 0))
    shard.losses.skipped_parts = list(before.get("losses", {}).get("skipped_part_names", []))
    shard.losses.damaged_journal_frames = int(before.get("losses", {}).get("damaged_journal_frames", 0))
    shard.recover(before.get("processes", []))
    coordinator = Coordinator(run, session, _version(), shard)
    shard.before_roll = coordinator.write
    coordinator.drained = shard.drained or bool(before.get("drained"))
    coordinator.write()
    if not coordinator.drained:
        _receive(session["endpoint"], shard, coordinator)
    if not shard.rings and not any(losses(shard).values()):
        shutil.rmtree(run)  # no process recorded anything: leave nothing behind
        return 0
    status = _finish(run, session_dir, session, shard, coordinator)
    os.close(lock)
    return status


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


def open_run(run: Path, session: str) -> dict[str, Any]:
    """Makes the run directory, or takes up that of the same session. Returns its run.json as far as there is one."""
    try:
        run.mkdir(mode=0o700, parents=True, exist_ok=True)
        free = shutil.disk_usage(run).free
        probe = run / ".probe"
        probe.touch(0o600)
        probe.unlink()
    except OSError as error:
        raise MemscopeError(f"cannot write to {run}: {error.strerror}; choose another --output-path") from error
    if free < MIN_FREE_BYTES:
        raise MemscopeError(f"{run}: only {free >> 20} MiB are free; at least {MIN_FREE_BYTES >> 20} MiB are needed")
    try:
        before = json.loads((run / "run.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        # One of ours that was killed before its first run.json; a run's name holds its session.
        ours = {"events", "strings", "frames", "stacks", "usage", "journal", "run.json.tmp"}
        if any(path.name not in ours for path in run.iterdir()):
            raise MemscopeError(f"{run} is not empty; choose another --output-path") from None
        return {}
    except (OSError, ValueError) as error:
        raise MemscopeError(f"{run}/run.json cannot be read: {error}") from error
    if before.get("session") != session:
        raise MemscopeError(f"{run} holds another run; two runs cannot share a directory")
    found: dict[str, Any] = before
    return found


def _receive(endpoint: str, shard: Shard, coordinator: Coordinator) -> None:
    """Serves agents until they have left or SIGTERM comes."""
    asked_to_end = []
    signal.signal(signal.SIGTERM, lambda *_: asked_to_end.append(True))
    context = zmq.Context()
    socket = context.socket(zmq.ROUTER)
    socket.setsockopt(zmq.RCVHWM, 0)  # the agents' windows bound what is under way
    socket.setsockopt(zmq.SNDHWM, 10_000)
    socket.setsockopt(zmq.LINGER, 2000)
    # Up to four times the limit a message is refused with a reason; beyond that ZeroMQ cuts the connection
    # rather than hold it in memory.
    socket.setsockopt(zmq.MAXMSGSIZE, 4 * MAX_MESSAGE_BYTES)
    socket.bind(endpoint)
    noted = time.monotonic()
    rings_noted = -1
    try:
        while not shard.all_agents_left and not asked_to_end:
            for _ in range(64):
                if not socket.poll(POLL_MS):
                    break
                agent, *frames = socket.recv_multipart(copy=False)
                data = frames[0].buffer if len(frames) == 1 else memoryview(b"")
                for reply in shard.answer(data):
                    socket.send_multipart([agent.bytes, reply])
                shard.roll()
            shard.roll()
            if len(shard.rings) != rings_noted or time.monotonic() - noted > 2:
                rings_noted, noted = len(shard.rings), time.monotonic()
                _try_write(coordinator)
        coordinator.drained = shard.all_agents_left
    finally:
        socket.close()
        context.term()


def _finish(run: Path, session_dir: Path, session: dict[str, Any], shard: Shard, coordinator: Coordinator) -> int:
    """Rolls, writes the outputs and the last run.json."""
    if not shard.rings:
        # No process turned out to be one to watch. The directory is ours and holds nothing.
        shutil.rmtree(run, ignore_errors=True)
        return 0
    coordinator.end(_read_finish(session_dir / "finish"))
    if not shard.close(GIVE_UP_S):
        raise MemscopeError(
            f"{run}: the tables could not be written; {run}/journal holds the rest: make room and restart"
        )
    (run / "journal").rmdir()
    coordinator.write_losses()
    if not session.get("aggregator", {}).get("outputs", True):  # benchmarks: tables only
        coordinator.write(finished=True)
        return 0
    coordinator.write()
    try:
        from msmemscope.report.console import print_text
        from msmemscope.report.outputs import OutputError, write_outputs  # imports the analyses: only now

        try:
            outcome = write_outputs(run, config=session.get("config"))
        except OutputError as error:
            print_text(error.outcome.text)
            raise
        print_text(outcome.text)
        for note in outcome.notes:
            print(f"[msmemscope] Note: {note}", file=sys.stderr)
    except Exception as error:  # noqa: BLE001 - the tables are whole; what is derived from them can be made again
        print(f"[msmemscope] the outputs could not be written ({error!r}); `msmemscope analyze {run}` tries again",
              file=sys.stderr)  # fmt: skip
        coordinator.write(finished=True, outputs_error=repr(error))
        return MemscopeError.exit_status
    coordinator.write(finished=True)
    return 0


def _try_write(coordinator: Coordinator) -> None:
    """run.json now and then, for whoever looks; a full disk is the roll's business to report."""
    try:
        coordinator.write()
    except OSError:
        return


def _read_finish(path: Path) -> dict[str, Any]:
    """What the supervisor says of the program's end; {} when it says nothing."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _lock(path: Path) -> int:
    """Makes sure that there is one aggregator per session."""
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise MemscopeError(f"another aggregator serves {path.parent}") from None
    os.ftruncate(file, 0)
    os.pwrite(file, f"{os.getpid()}\n".encode(), 0)
    return file


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("msmemscope")
    except PackageNotFoundError:
        return "unknown"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
