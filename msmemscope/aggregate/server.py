"""The aggregator process of one machine: one shard and the coordinator behind one socket.

``python -m msmemscope.aggregate.server SESSION_DIR [alone]``. Started and, when it dies, restarted by the supervisor.
It makes the run directory, serves the agents until each has said bye (or SIGTERM asks for what there is), rolls
everything into tables, writes the outputs and exits: 0, or 4 after one line on stderr.

Where no agent is left to say bye it reads the rings itself, and where the supervisor was killed it removes the session
too. `alone`: both are so from the start, because somebody takes up what a killed run left.
"""

from __future__ import annotations

import fcntl
import gc
import json
import os
import shutil
import signal
import sys
import threading
import time
from concurrent.futures import Future, wait
from contextlib import closing, nullcontext, suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import zmq

from msmemscope._native import keep_freed_memory
from msmemscope.aggregate.coordinator import Coordinator
from msmemscope.aggregate.drain import drain
from msmemscope.aggregate.evidence import OwnEvidence
from msmemscope.aggregate.folding import Folding
from msmemscope.aggregate.journal import DAMAGED
from msmemscope.aggregate.judge import Judge
from msmemscope.aggregate.leaking import LeakingFiles
from msmemscope.aggregate.life_parts import FOLDER as LIVE_BLOCKS
from msmemscope.aggregate.roll_call import losses
from msmemscope.aggregate.shard import DEFAULT_ROLL_ROWS, Shard
from msmemscope.collect.agent.standby import is_empty
from msmemscope.collect.presence import AGENT, AGGREGATOR, OWNER, anybody_lives, hold, is_free
from msmemscope.collect.session import ALONE, FINISH, Session
from msmemscope.collect.unsaved import UNSAVED, find, keep, writers_live
from msmemscope.errors import MemscopeError
from msmemscope.telling import tell
from msmemscope.wire.messages import MAX_MESSAGE_BYTES
from msmemscope.wire.reports import AgentReport, Damage, JobReport, Losses, UsageFacts

if TYPE_CHECKING:
    from msmemscope.report.outputs import Outcome

GIVE_UP_S = 10.0  # how long a full disk is waited for at the end
WITHOUT_AGENT_S = 10.0  # at the end an agent that is being started again appears within this time
MADE_AGAIN_S = 3.0  # a session directory that was deleted is there again within this time
POLL_MS = 50
LOCK_S = 1.0  # whoever asks whether a run is being recorded holds its lock for a moment


def main(arguments: list[str]) -> int:
    if len(arguments) not in (1, 2) or arguments[1:] not in ([], [ALONE]):
        print(f"usage: python -m msmemscope.aggregate.server SESSION_DIR [{ALONE}]", file=sys.stderr)
        return 2
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the program; the supervisor tells us what follows
    keep_freed_memory()
    gc.freeze()  # what the imports made lives for ever: no need to look through it again and again
    try:
        return serve(Path(arguments[0]), alone=len(arguments) == 2)
    except MemscopeError as error:
        tell(f"aggregator: {error}")
        return error.exit_status
    except (OSError, zmq.ZMQError) as error:
        tell(f"aggregator: {error}")
        return MemscopeError.exit_status


def serve(session_dir: Path, *, alone: bool = False) -> int:
    """Everything from start to exit."""
    session = read_session(session_dir)
    run = Path(session["run"])
    before = open_run(run, session["session"])
    _hold_session(session_dir)
    lock = _lock(run)  # held until this process ends, however it ends
    if before.get("finished"):
        return 0
    folding = Folding(run)
    shard, coordinator = _take_up(run, session, before, folding)
    judge = Judge(run, coordinator, OwnEvidence(shard, folding), session.get("config"), LeakingFiles(session_dir))
    place = _Place(run, lock, shard, coordinator, judge)
    shard.repair = place.repair
    _try_write(coordinator)
    with closing(folding):  # the thread must not be in the midst of a batch when the interpreter goes
        if not coordinator.drained and not alone:
            _receive(session_dir, session["endpoint"], shard, coordinator, place, judge)
        if not coordinator.drained:
            coordinator.drained = drain(session_dir, session, shard)
        if not shard.rings and not any(losses(JobReport([shard.report()])).values()):
            coordinator.remove_run()  # no process recorded anything: leave nothing behind
            with suppress(OSError):  # another run has come
                for made in session.get("missing") or []:
                    Path(made).rmdir()
            status = 0
        else:
            status = _finish(run, session_dir, session, shard, coordinator, place, judge, quiet=alone)
        if not coordinator.drained:
            status = status or MemscopeError.exit_status  # the supervisor keeps what is left
    if alone or is_free(session_dir / OWNER):
        _remove(session_dir, drained=coordinator.drained)
    return status


class _Place:
    """The run directory as we hold it. Somebody may delete it, or a part of it, while the run goes on."""

    def __init__(self, run: Path, lock: int, shard: Shard, coordinator: Coordinator, judge: Judge) -> None:
        self._run = run
        self._judge = judge
        self._lock = lock
        self._shard = shard
        self._coordinator = coordinator
        self._told = False

    @property
    def is_ours(self) -> bool:
        """Does the directory that we locked still have its name?"""
        try:
            return os.path.samestat(self._run.stat(), os.fstat(self._lock))
        except OSError:
            return False

    def repair(self) -> None:
        """Makes what was deleted again, for what is in memory and what comes. Nothing when that fails, for now."""
        if self.is_ours and self._shard.is_whole:
            return
        with suppress(OSError, MemscopeError):
            self._run.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not self.is_ours:
                lock = _lock(self._run)
                os.close(self._lock)
                self._lock = lock
            self._shard.begin_again()
            self._judge.restore()
            if not self._told:  # a deletion takes its time, and may be met several times
                self._told = True
                tell(
                    f"aggregator: {self._run} was deleted while it was written: it is made again; what it held is "
                    "lost, and counted"
                )
            _try_write(self._coordinator)


def _remove(session_dir: Path, *, drained: bool) -> None:
    """What the supervisor would do, had it not been killed."""
    if drained:
        shutil.rmtree(session_dir, ignore_errors=True)
    elif left := keep(Session.load(str(session_dir))):
        tell(left)


def recover(run: Path) -> bool:
    """Brings what stands only in the journal of an ended run, or in rings that were left unread, into its tables, for
    `msmemscope analyze`. Returns whether there was anything; MemscopeError when the run is still being written or
    cannot be."""
    unsaved = find(run)
    if not unsaved and not (run / "journal").is_dir():
        return False
    lock = _lock(run)
    try:
        before = json.loads((run / "run.json").read_text(encoding="utf-8"))
        hosts = before.get("hosts") or [""]
        session = {"session": before["session"], "config": before["config"], "program": before["program"],
                   "host": hosts[0], "created_wall_ns": before["started_wall_ns"],
                   "mode": before.get("mode", "launched"), "nodes": before.get("nodes")}  # fmt: skip
        shard, coordinator = _take_up(run, session, before)
        of_the_run = ("exit_status", "interrupted", "ended_wall_ns", "version", "versions")  # not of who recovers it
        kept = {name: before[name] for name in of_the_run if name in before}
        for directory in unsaved:
            found = read_session(directory)
            found.pop("agent", None)  # how an agent works is not for a run directory to say
            if found["session"] != session["session"] or not drain(directory, found, shard):
                raise MemscopeError(f"{run}: the records in {directory} cannot be stored: make room and try again")
            coordinator.drained = True
            kept |= _read_finish(directory / FINISH)
        _write_tables(run, shard, coordinator)
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
        run.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
        run.mkdir(mode=0o700, exist_ok=True)
        probe = run / ".probe"
        probe.touch(0o600)
        probe.unlink()
    except OSError as error:
        raise MemscopeError(f"cannot write to {run}: {error.strerror}; choose another --output-path") from error
    try:
        before = json.loads((run / "run.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        # One of ours that was killed before its first run.json; a run's name holds its session.
        ours = {
            "events",
            "strings",
            "frames",
            "stacks",
            "usage",
            "journal",
            DAMAGED,
            LIVE_BLOCKS,
            "run.json.tmp",
            UNSAVED,
            UNSAVED + "~",
        }
        if any(path.name not in ours for path in run.iterdir()):
            raise MemscopeError(f"{run} is not empty; choose another --output-path") from None
        return {}
    except (OSError, ValueError) as error:
        raise MemscopeError(f"{run}/run.json cannot be read: {error}") from error
    if before.get("session") != session:
        raise MemscopeError(f"{run} holds another run; two runs cannot share a directory")
    found: dict[str, Any] = before
    return found


def _receive(
    session_dir: Path, endpoint: str, shard: Shard, coordinator: Coordinator, place: _Place, judge: Judge
) -> None:
    """Serves agents until they have left, SIGTERM comes, or the end has come and there is no agent."""
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
    _bind(socket, endpoint)
    heard = time.monotonic()
    noted = served = look_at = time.monotonic()
    rings_noted = -1
    noting: Future[None] | None = None
    prepared = False
    try:
        while not shard.all_agents_left and not asked_to_end and not _is_over_at_once(session_dir, shard):
            for _ in range(64):
                if shard.all_agents_left or not socket.poll(POLL_MS):
                    break
                agent, *frames = socket.recv_multipart(copy=False)
                heard = time.monotonic()
                data = frames[0].buffer if len(frames) == 1 else memoryview(b"")
                for reply in shard.answer(data):
                    socket.send_multipart([agent.bytes, reply])
                shard.roll()
            shard.roll()
            if time.monotonic() >= look_at:
                look_at = time.monotonic() + 1
                judge.look()
                place.repair()
                if not session_dir.exists():
                    if time.monotonic() - heard > WITHOUT_AGENT_S:
                        break  # somebody deleted it, and no agent that still has its rings goes on
                elif (session_dir / "session.json").exists():
                    _stay_in(session_dir, socket, endpoint)
                if not _is_over_without_agent(session_dir):
                    served = time.monotonic()
                elif time.monotonic() - served > WITHOUT_AGENT_S:
                    break
            if shard.rings and not prepared:
                prepared = True
                threading.Thread(target=_import_the_analyses, daemon=True).start()
            # For whoever looks: recovery needs it at rolls only. In the other thread, and at most a twentieth of it.
            pause = max(20 * coordinator.cost_s, 2 if len(shard.rings) == rings_noted else 0)
            if noting is not None and not noting.done():
                noted = time.monotonic()
            elif time.monotonic() - noted >= pause:
                noted, rings_noted = time.monotonic(), len(shard.rings)
                noting = shard.later(lambda: _try_write(coordinator))
        coordinator.drained = shard.all_agents_left or (not asked_to_end and _is_over_at_once(session_dir, shard))
        if noting is not None:
            wait([noting])  # it writes into a directory that may be removed next
    finally:
        socket.close()
        context.term()


def _bind(socket: zmq.Socket[bytes], endpoint: str) -> None:
    deadline = time.monotonic() + MADE_AGAIN_S
    while True:
        try:
            socket.bind(endpoint)
        except zmq.ZMQError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)  # its directory was deleted, and comes again
        else:
            return


def _stay_in(session_dir: Path, socket: zmq.Socket[bytes], endpoint: str) -> None:
    """When the session directory was deleted, and its owner has made it again."""
    with suppress(OSError, MemscopeError, zmq.ZMQError):  # next time
        _hold_session(session_dir)
        if not os.path.lexists(endpoint.removeprefix("ipc://")):
            with suppress(zmq.ZMQError):
                socket.unbind(endpoint)
            socket.bind(endpoint)


def _hold_session(session_dir: Path) -> None:
    """Makes sure that this is the one aggregator of the session, until this process ends."""
    try:
        lock = hold(session_dir / AGGREGATOR)
    except BlockingIOError:
        raise MemscopeError(f"{session_dir} is in use by another aggregator; wait for its end") from None
    pid = f"{os.getpid()}\n".encode()
    if os.pread(lock, len(pid) + 1, 0) != pid:
        os.ftruncate(lock, 0)
        os.pwrite(lock, pid, 0)


def _import_the_analyses() -> None:
    """While the program runs, so that nobody waits for it at the end. That asks again, and says what went wrong."""
    with suppress(Exception):
        for name in ("numpy.ma", "pyarrow.dataset", "pyarrow.acero"):  # by pyarrow, with its first tables
            import_module(name)
        import msmemscope.report.console
        import msmemscope.report.outputs  # noqa: F401


def _is_over_at_once(session_dir: Path, shard: Shard) -> bool:
    """Has the program ended before an agent said hello, and without anything for an agent to read?"""
    if shard.rings or shard.agents or shard.expected_agents != 1 or not (session_dir / FINISH).exists():
        return False
    try:
        return is_empty(str(session_dir))
    except OSError:
        return False


def _is_over_without_agent(session_dir: Path) -> bool:
    """Is there no agent, and has the program ended? Where the supervisor was killed, nobody else says that."""
    if (session_dir / AGENT).exists() and not is_free(session_dir / AGENT):
        return False
    if (session_dir / FINISH).exists():
        return True
    deserted = is_free(session_dir / OWNER) and not anybody_lives(str(session_dir))
    return deserted and not writers_live(session_dir)


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


def _take_up(
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


def _write_tables(run: Path, shard: Shard, coordinator: Coordinator) -> None:
    try:
        if shard.close(GIVE_UP_S):
            with suppress(FileNotFoundError):
                (run / "journal").rmdir()
            coordinator.write_losses()
            return
        why = "no room"
    except OSError as error:
        why = str(error.strerror)
    if not run.is_dir():
        raise MemscopeError(f"{run} was deleted and cannot be made again ({why}): what it held is lost")
    waiting = sum(path.stat().st_size for path in (run / "journal").glob("*.journal")) / (1 << 20)
    raise MemscopeError(
        f"{run}: the tables could not be written ({why}); {waiting:.1f} MiB wait in its journal: "
        f"make room, then msmemscope analyze {run}"
    )


def _finish(
    run: Path,
    session_dir: Path,
    session: dict[str, Any],
    shard: Shard,
    coordinator: Coordinator,
    place: _Place,
    judge: Judge,
    *,
    quiet: bool,
) -> int:
    """Rolls, writes the outputs and the last run.json. quiet: this terminal waits for no verdict."""
    with suppress(OSError):  # _write_tables says it
        coordinator.end(_read_finish(session_dir / FINISH))
    _write_tables(run, shard, coordinator)

    def over(**more: Any) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        shard.tidy()
        coordinator.write(finished=True, **more)

    # From here on only what can be made again is at stake. Whoever is interrupted removes what is half written.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if not session.get("aggregator", {}).get("outputs", True):  # benchmarks: tables only
        judge.finish()
        over()
        return 0
    _try_write(coordinator)
    try:
        judge.finish()
        outcome = _write_outputs(run, session, judge, quiet=quiet)
        shard.losses.skipped_parts += [name for name in outcome.skipped if name not in shard.losses.skipped_parts]
        shard.losses.unreadable_rows = max(shard.losses.unreadable_rows, outcome.unreadable_rows)
        for note in () if quiet else outcome.notes:
            tell(f"Note: {note}")
    except KeyboardInterrupt as stopped:
        tell(str(stopped) or f"interrupted; all outputs: msmemscope analyze {run}")
        over(outputs_error="interrupted")
        return 0
    except Exception as error:  # noqa: BLE001 - the tables are whole; what is derived from them can be made again
        if not place.is_ours:
            why = f"{run} was deleted while its outputs were written: what it held is lost"
        elif isinstance(error, MemscopeError):
            why = str(error)
        else:
            why = f"the outputs could not be written ({error!r}); `msmemscope analyze {run}` tries again"
        tell(why)
        with suppress(OSError):
            over(outputs_error=repr(error))
        return MemscopeError.exit_status
    over()
    return 0


def _write_outputs(run: Path, session: dict[str, Any], judge: Judge, *, quiet: bool) -> Outcome:
    """The verdict is printed before anything long is written, under a progress bar."""
    from msmemscope.progress import progress_bar
    from msmemscope.report.outputs import OutputError, write_outputs  # imports the analyses: only now

    with nullcontext() if quiet else progress_bar() as progress:

        def say(verdict: str) -> None:
            if progress is not None:
                progress.clear()
            if not quiet:
                _print(verdict)

        try:
            config = session.get("config")
            final = judge.final()
            return write_outputs(run, config=config, analysis=final, blocks=judge.blocks, progress=progress, tell=say)
        except OutputError as error:
            if quiet:
                _print(error.outcome.text)
            raise


def _print(text: str) -> None:
    """The verdict on stderr, as long as somebody reads that; summary.txt has it in any case."""
    from msmemscope.report.console import print_text

    with suppress(OSError, ValueError):
        print_text(text)


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
    """Makes sure that there is one aggregator per run. The lock ends with the descriptor."""
    file = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    deadline = time.monotonic() + LOCK_S
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return file
        except BlockingIOError:
            if time.monotonic() > deadline:
                os.close(file)
                raise MemscopeError(f"{path} is in use by another aggregator; wait for its end") from None
            time.sleep(LOCK_S / 20)


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("msmemscope")
    except PackageNotFoundError:
        return "unknown"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
