"""The aggregator process of one machine: one shard and the coordinator behind one socket.

``python -m msmemscope.aggregate.server SESSION_DIR [alone]``. Started and, when it dies, restarted by the supervisor.
It makes the run directory, serves the agents until each has said bye (or SIGTERM asks for what there is), rolls
everything into tables, writes the outputs and exits: 0, or 4 after one line on stderr.

Where no agent is left to say bye it reads the rings itself, and where the supervisor was killed it removes the session
too. `alone`: both are so from the start, because somebody takes up what a killed run left.
"""

from __future__ import annotations

import gc
import os
import shutil
import signal
import sys
import threading
import time
from concurrent.futures import Future, wait
from contextlib import closing, suppress
from importlib import import_module
from pathlib import Path

import zmq

from msmemscope._native import keep_freed_memory
from msmemscope.aggregate.coordinator import Coordinator
from msmemscope.aggregate.drain import drain
from msmemscope.aggregate.evidence import OwnEvidence
from msmemscope.aggregate.finishing import finish
from msmemscope.aggregate.folding import Folding
from msmemscope.aggregate.judge import Judge
from msmemscope.aggregate.leaking import LeakingFiles
from msmemscope.aggregate.roll_call import losses
from msmemscope.aggregate.run_place import Place, lock_run, open_run
from msmemscope.aggregate.shard import Shard
from msmemscope.aggregate.take_up import read_session, take_up
from msmemscope.collect.agent.standby import is_empty
from msmemscope.collect.presence import AGENT, AGGREGATOR, OWNER, anybody_lives, hold, is_free
from msmemscope.collect.session import ALONE, FINISH, Session
from msmemscope.collect.unsaved import keep, writers_live
from msmemscope.errors import MemscopeError
from msmemscope.telling import tell
from msmemscope.wire.messages import MAX_MESSAGE_BYTES
from msmemscope.wire.reports import JobReport

WITHOUT_AGENT_S = 10.0  # at the end an agent that is being started again appears within this time
MADE_AGAIN_S = 3.0  # a session directory that was deleted is there again within this time
POLL_MS = 50


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
    lock = lock_run(run)  # held until this process ends, however it ends
    if before.get("finished"):
        return 0
    folding = Folding(run)
    shard, coordinator = take_up(run, session, before, folding)
    judge = Judge(run, coordinator, OwnEvidence(shard, folding), session.get("config"), LeakingFiles(session_dir))
    place = Place(run, lock, shard, coordinator, judge)
    shard.repair = place.repair
    coordinator.try_write()
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
            status = finish(run, session_dir, session, shard, coordinator, place, judge, quiet=alone)
        if not coordinator.drained:
            status = status or MemscopeError.exit_status  # the supervisor keeps what is left
    if alone or is_free(session_dir / OWNER):
        _remove(session_dir, drained=coordinator.drained)
    return status


def _remove(session_dir: Path, *, drained: bool) -> None:
    """What the supervisor would do, had it not been killed."""
    if drained:
        shutil.rmtree(session_dir, ignore_errors=True)
    elif left := keep(Session.load(str(session_dir))):
        tell(left)


def _receive(
    session_dir: Path, endpoint: str, shard: Shard, coordinator: Coordinator, place: Place, judge: Judge
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
                noting = shard.later(coordinator.try_write)
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


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
