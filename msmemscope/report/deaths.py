"""Who did not end by itself, in words: the first thing to know about a run.

In: the processes of a run, as the agent saw them end (collect/lives.py), and the program's exit status. Out: short
texts such as "rank 2 by SIGKILL". Only what is known is said: a process that neither said goodbye nor was seen ending
may have been killed, or have called _exit().

Ray ends its actors by SIGKILL when the driver has ended, and vLLM its engine and workers by SIGTERM and SIGKILL where
they are slow to end: in a job that went well. Nobody knows who sent a signal, but the program's status says that it
missed nothing, so these are told apart, unless ranks were started again. Of what is no rank, SIGTERM is then no word
worth: multiprocessing ends the workers of a pool by it.

Whoever presses Ctrl-C knows who ended the program: what it ended did not die.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from msmemscope.analysis.findings import ranks_text
from msmemscope.text import counted

if TYPE_CHECKING:
    from msmemscope.analysis.subjects import Subject, Subjects
    from msmemscope.tables.process import Process
    from msmemscope.tables.run import Run

_UNKNOWN = "without a goodbye: killed, or by _exit()"
# A pool ends its workers so, and nothing is wrong then.
_ORDINARY_FOR_WORKERS = (signal.SIGTERM, signal.SIGINT)


# The signals by which a framework ends what it started.
_OF_A_FRAMEWORK = (signal.SIGTERM, signal.SIGKILL)


@dataclass(frozen=True)
class Endings:
    """One text for each way in which somebody ended; ranks that ended alike are folded."""

    died: tuple[str, ...]
    killed: tuple[str, ...]  # by a signal of a framework, in a job whose program ended with status 0
    interrupted: bool = False  # Ctrl-C ended the program


def endings(run: Run, subjects: Subjects) -> Endings:
    status = run.info.get("exit_status")
    went_well = status == 0 and not any(process.attempt for process in run.processes)
    interrupted = run.info.get("interrupted") is True
    died, killed = _Texts(), _Texts()
    for subject in subjects:
        for number in subject.members:
            process = run.processes[number]
            if interrupted and process.ended_by in (signal.SIGINT, *_OF_A_FRAMEWORK[:1]):
                continue  # torchrun passes it on as SIGTERM
            if went_well and process.rank is None and process.ended_by == signal.SIGTERM:
                continue  # Pool.terminate() of multiprocessing, which the end of a `with` block calls
            to = killed if went_well and process.ended_by in _OF_A_FRAMEWORK else died
            to.add(subject, _how(process, is_main=number == subject.main), is_main=number == subject.main)
    texts = died.texts()
    if isinstance(status, int) and status < 0 and not interrupted and not any(_by(-status) in text for text in texts):
        texts += (f"the program {_by(-status)}",)
    return Endings(texts, killed.texts(), interrupted)


class _Texts:
    def __init__(self) -> None:
        self._found: dict[str, list[Subject]] = {}
        self._workers: dict[str, int] = {}

    def add(self, subject: Subject, how: str, *, is_main: bool) -> None:
        if how and is_main:
            self._found.setdefault(how, []).append(subject)
        elif how:
            of = f"of {subject.label} {how}"
            self._workers[of] = self._workers.get(of, 0) + 1

    def texts(self) -> tuple[str, ...]:
        found = [f"{_who(dead)} {how}" for how, dead in self._found.items()]
        return (*found, *(f"{counted(count, 'worker')} {how}" for how, count in self._workers.items()))


def _how(process: Process, *, is_main: bool) -> str:
    if process.ended_by > 0:
        ordinary = not is_main and process.ended_by in _ORDINARY_FOR_WORKERS
        why = ", as its memory group had reached its limit" if process.ended_for_memory else ""
        return "" if ordinary else _by(process.ended_by) + why
    # Workers of a pool leave by _exit(), which says no goodbye.
    silent = is_main and process.ended_ns > 0 and process.ended_by < 0 and not process.closed
    return _UNKNOWN if silent else ""


def _by(number: int) -> str:
    try:
        return f"by {signal.Signals(number).name}"
    except ValueError:
        return f"by signal {number}"


def _who(dead: Sequence[Subject]) -> str:
    ranks = [one for one in dead if one.rank is not None]
    texts = []
    for attempt in sorted({one.attempt for one in ranks}):
        numbers = [one.rank for one in ranks if one.attempt == attempt and one.rank is not None]
        texts.append(ranks_text(numbers) + (f" (attempt {attempt})" if attempt else ""))
    names = [one.name for one in dead if one.rank is None]
    texts += names[:3] + ([f"{len(names) - 3} more processes"] if len(names) > 3 else [])
    return ", ".join(texts)
