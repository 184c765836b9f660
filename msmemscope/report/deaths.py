"""Who did not end by itself, in words: the first thing to know about a run.

In: the processes of a run, as the agent saw them end (collect/lives.py), and the program's exit status. Out: short
texts such as "rank 2 by SIGKILL". Only what is known is said: a process that neither said goodbye nor was seen ending
may have been killed, or have called _exit().
"""

from __future__ import annotations

import signal
from collections.abc import Sequence
from typing import TYPE_CHECKING

from msmemscope.analysis.findings import fold_ranks

if TYPE_CHECKING:
    from msmemscope.analysis.subjects import Subject, Subjects
    from msmemscope.tables import Process, Run

_UNKNOWN = "without a goodbye: killed, or by _exit()"
# A pool ends its workers so, and nothing is wrong then.
_ORDINARY_FOR_WORKERS = (signal.SIGTERM, signal.SIGINT)


def deaths(run: Run, subjects: Subjects) -> tuple[str, ...]:
    """One text for each way in which somebody died; ranks that died alike are folded."""
    found: dict[str, list[Subject]] = {}
    workers: dict[str, int] = {}
    for subject in subjects:
        for number in subject.members:
            how = _how(run.processes[number], is_main=number == subject.main)
            if how and number == subject.main:
                found.setdefault(how, []).append(subject)
            elif how:
                workers[f"of {subject.label} {how}"] = workers.get(f"of {subject.label} {how}", 0) + 1
    texts = [f"{_who(dead)} {how}" for how, dead in found.items()]
    texts += [f"{count} worker{'s' if count > 1 else ''} {how}" for how, count in workers.items()]
    status = run.info.get("exit_status")
    if isinstance(status, int) and status < 0 and not any(_by(-status) in text for text in texts):
        texts.append(f"the program {_by(-status)}")
    return tuple(texts)


def _how(process: Process, *, is_main: bool) -> str:
    if process.ended_by > 0:
        ordinary = not is_main and process.ended_by in _ORDINARY_FOR_WORKERS
        return "" if ordinary else _by(process.ended_by)
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
        word = "rank" if len(numbers) == 1 else "ranks"
        texts.append(f"{word} {fold_ranks(numbers)}" + (f" (attempt {attempt})" if attempt else ""))
    names = [one.name for one in dead if one.rank is None]
    texts += names[:3] + ([f"{len(names) - 3} more processes"] if len(names) > 3 else [])
    return ", ".join(texts)
