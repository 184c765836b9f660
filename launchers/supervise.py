"""Runs a program under watch: session, agent and aggregator around it, its exit status and signals passed through.

In: a Config and the program's argv. Out: the program's exit status; a run directory written by the aggregator.
Called by `msmemscope [options] program args`.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from msmemscope.collect.nothing import open_nothing
from msmemscope.collect.presence import join
from msmemscope.collect.session import Session
from msmemscope.dependencies import require_imports
from msmemscope.errors import MemscopeError
from msmemscope.launchers.bystander import Bystander
from msmemscope.launchers.program import ignored_for_it, let_go_of_its_files, start_program
from msmemscope.launchers.services import Services
from msmemscope.launchers.sweep import sweep
from msmemscope.options.declared import Config
from msmemscope.telling import tell

POLL_S = 0.1
# Meant for the program when they are sent to us. Those that stop a process are not among them: a shell stops the whole
# group, and would wait for ever for one that stays.
_FORWARDED = {
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGALRM,
    signal.SIGCONT,
    signal.SIGPWR,
    signal.SIGWINCH,
}
_END_A_PROGRAM = _FORWARDED - {signal.SIGCONT, signal.SIGWINCH}  # where it has no handler
_WAITED = {*_FORWARDED, signal.SIGCHLD}


def run(config: Config, argv: list[str]) -> int:
    """Runs `argv` watched and returns its exit status; when a signal ended it, ends this process by the same one
    (128 + n where that is not possible). Raises MemscopeError when the program cannot be started."""
    _occupy_standard_files()
    require_imports()
    for line in sweep():
        tell(line)
    session = Session.create(config, argv, mode="launched")
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, _WAITED)
    # Ignored, SIGCHLD takes us the exit status of every child.
    ignored = {signal.SIGCHLD} if signal.signal(signal.SIGCHLD, signal.SIG_DFL) is signal.SIG_IGN else set()
    hers = ignored_for_it() | ignored
    try:
        bystander = Bystander(_FORWARDED)
    except OSError as error:
        shutil.rmtree(session.directory, ignore_errors=True)
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        raise MemscopeError(f"nothing can be started here ({error.strerror}): see ulimit -a") from None
    services = Services(session)
    try:
        status = -_ended_early(blocked)
        if status == 0:
            program = start_program(argv, session.environment(), _WAITED, blocked=blocked, ignored=hers)
            status, interrupted = _stay_with(program, session, services, bystander)
            if interrupted:
                tell("the program was interrupted; the verdict on what it did follows (Ctrl-C twice gives it up)")
            with _harmless():
                _finish(session, services, status, interrupted=interrupted)
    finally:
        with _harmless():
            services.stop()
        with _harmless():
            bystander.end()
        with _harmless():
            if left := services.leave():
                tell(left)
        while signal.sigtimedwait(_WAITED, 0) is not None:
            pass  # came too late for the program
        for number in ignored:
            signal.signal(number, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    if status < 0:
        _die_by(-status)
        return 128 - status
    return status


def _occupy_standard_files() -> None:
    """What is closed becomes /dev/null, so that no lock or pipe of ours takes its number; it stays closed for the
    program, because it is not inherited."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            open_nothing()  # the lowest number that is free


def _stay_with(
    program: subprocess.Popen[bytes], session: Session, services: Services, bystander: Bystander
) -> tuple[int, bool]:
    """Its exit status, once it has ended, and whether Ctrl-C ended it: it came, and the program did not end as well as
    if it had not. Until then nothing that befalls us takes us away from it."""
    interrupted = False
    with _harmless():
        let_go_of_its_files()
        join(session.directory, program.pid)
    while True:
        arrived = signal.sigtimedwait(_WAITED, POLL_S)
        interrupted |= arrived is not None and arrived.si_signo == signal.SIGINT
        if arrived is not None and arrived.si_signo in _FORWARDED and not bystander.has_seen(arrived):
            with suppress(ProcessLookupError):
                program.send_signal(arrived.si_signo)
        services.tend()
        status = program.poll()
        if status is not None:
            return status, status == -signal.SIGINT or (interrupted and status != 0)


@contextmanager
def _harmless() -> Iterator[None]:
    """Once the program has been started, a fault of ours is said, and the program's exit status stays what it is."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 - whatever it is
        tell(f"{type(error).__name__}: {error}; this is a fault of msmemscope")


def _ended_early(blocked: Collection[int]) -> int:
    """The signal that came before there was a program to receive it, and would have ended it; 0 for none."""
    for number in sorted(signal.sigpending() & _END_A_PROGRAM - {*blocked}):
        if signal.getsignal(number) is not signal.SIG_IGN:
            tell(f"ended by {signal.Signals(number).name} before the program was started")
            return int(number)
    return 0


def _finish(session: Session, services: Services, status: int, *, interrupted: bool) -> None:
    """Waits until everything is stored and written. A second Ctrl-C gives the outputs up, not the events."""
    services.finish(status, interrupted=interrupted)
    interrupts = 0
    while not services.are_done:
        arrived = signal.sigtimedwait({signal.SIGINT, signal.SIGTERM, signal.SIGCHLD}, POLL_S)
        services.tend()
        if arrived is not None and arrived.si_signo in (signal.SIGINT, signal.SIGTERM):
            interrupts += 1
            if interrupts > 1:
                tell(f"outputs given up; the events are kept: msmemscope analyze {session.run_directory}")
                return
            tell("the program has ended, outputs are being written; once more to give them up")
    for line in services.news:
        tell(line)
    if services.aggregator.status != 0:
        tell(f"the aggregator failed (status {services.aggregator.status}); see above and {session.run_directory}")
    elif not Path(session.run_directory).is_dir():
        why = "no process allocated through an allocator that is watched (see: msmemscope doctor)"
        if session.config.collect_mode == "deferred":
            why = "with --collect-mode deferred nothing is before the program calls msmemscope.start()"
        tell(f"nothing was recorded: {why}")


def _die_by(number: int) -> None:
    """Ends this process by the signal that ended the program, so that a shell sees what it would have seen."""
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the program's core is the interesting one
    with suppress(OSError, ValueError):
        sys.stderr.flush()
    with suppress(OSError, ValueError):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
    os.kill(os.getpid(), number)
