"""Who is judged: a rank of the job, or a process that is none.

Flows in: the processes of a run, and how many step boundaries each made itself. Flows out: `Subject`s. Everything that
is said about somebody (leaks, the table, summary.json) is said about a subject.

A subject is one process and those that it started to work for it: processes whose parent it is, that have neither a
name nor steps of their own (DataLoader workers). What names itself (`VLLM::EngineCore`, `eval.py`) or counts steps of
its own is a subject, whoever started it.

A subject is a rank by the word of a launcher or of a process group alone (`Process.rank`). Where several processes have
that word for the same rank and attempt (a script that runs two programs under one RANK), the only one of them that
makes steps is the rank; if several do, none is, and each is judged under its own name: numbers of different programs
are never added up.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING

from msmemscope.text import host_text

if TYPE_CHECKING:
    from msmemscope.tables.process import Process

SEPARATOR = "\u241f"  # between the words of Process.command
_LONGEST_NAME = 64
_WITH_VALUE = ("-W", "-X", "--check-hash-based-pycs")  # options of Python whose value is the next word


@dataclass(frozen=True)
class Subject:
    """One rank, or one process that is none, with its workers. Processes are named by their index."""

    main: int
    members: tuple[int, ...]
    """The main process first."""
    rank: int | None
    attempt: int
    name: str
    """Of a process that is no rank, unique in the run: "train.py" when it is alone, else "train.py [pid 4711]"."""

    @property
    def label(self) -> str:
        """How it is called within a sentence: "rank 3", "train.py [pid 4711]"."""
        return self.name if self.rank is None else f"rank {self.rank}"

    @property
    def key(self) -> str:
        """Its key in a finding's evidence: "3", "train.py [pid 4711]"."""
        return self.name if self.rank is None else str(self.rank)


class Subjects(Sequence[Subject]):
    """All of a run, ranks first, then by their processes; `of` finds that of a process."""

    def __init__(self, subjects: Sequence[Subject]) -> None:
        self._subjects = tuple(subjects)
        self._latest: dict[int, int] = {}
        for one in subjects:
            if one.rank is not None:
                self._latest[one.rank] = max(one.attempt, self._latest.get(one.rank, 0))
        self._of = {process: number for number, one in enumerate(subjects) for process in one.members}

    def __getitem__(self, number):  # type: ignore[no-untyped-def]
        return self._subjects[number]

    def __len__(self) -> int:
        return len(self._subjects)

    def __iter__(self) -> Iterator[Subject]:
        return iter(self._subjects)

    def number_of(self, process: int) -> int:
        """The index of the subject that a process belongs to."""
        return self._of[process]

    def of(self, process: int) -> Subject:
        """The subject that a process belongs to."""
        return self._subjects[self._of[process]]

    def is_over(self, subject: Subject) -> bool:
        """Whether it is a rank that was restarted since: a later attempt of it is there."""
        return subject.rank is not None and subject.attempt < self._latest[subject.rank]

    def of_latest_attempts(self, processes: Iterable[int]) -> list[int]:
        """Of some processes those of no rank, and of each rank those of its latest attempt among them: what is said of
        a restarted rank is said of it as it is now."""
        known = list(processes)
        latest: dict[int | None, int] = {}
        for number in known:
            one = self.of(number)
            latest[one.rank] = max(one.attempt, latest.get(one.rank, 0))
        return [number for number in known if (one := self.of(number)).rank is None or one.attempt == latest[one.rank]]

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks among them, ascending."""
        return tuple(sorted({one.rank for one in self if one.rank is not None}))


def who_cells(subject: Subject, process: Process) -> dict[str, str | int]:
    """Who a process of a subject is, as the cells rank ("" of none), process and pid of a row."""
    rank = "" if subject.rank is None else subject.rank
    return {"rank": rank, "process": subject.name, "pid": process.pid}


def find_subjects(processes: Sequence[Process], boundaries: Mapping[int, int]) -> Subjects:
    """Pure. boundaries: process index -> step boundaries that it made itself; absent: none."""
    members: dict[int, list[int]] = {}
    for number, main in enumerate(_mains(processes, boundaries)):
        members.setdefault(main, []).append(number)
    claims: dict[tuple[int, int], list[int]] = defaultdict(list)
    for main in members:
        process = processes[main]
        if process.rank is not None:
            claims[process.rank, process.attempt].append(main)
    are_ranks = {holder for mains in claims.values() if (holder := _holder(mains, boundaries)) is not None}
    names = _names(processes, members, are_ranks)
    subjects = [
        Subject(
            main=main,
            members=(main, *(number for number in group if number != main)),
            rank=processes[main].rank if main in are_ranks else None,
            attempt=processes[main].attempt,
            name=names[main],
        )
        for main, group in members.items()
    ]
    return Subjects(
        sorted(subjects, key=lambda one: (one.rank is None, one.rank or 0, one.attempt if one.rank is not None else 0))
    )


def name_of(process: Process) -> str:
    """What a process calls itself: its title if it set one, else its script, module or program. "" for a child of
    Python's multiprocessing, which has no name of its own.

    >>> from types import SimpleNamespace as P
    >>> name_of(P(command="/usr/bin/python3␟-u␟/home/me/train.py␟--lr␟1", program="/usr/bin/python3.11"))
    'train.py'
    >>> name_of(P(command="VLLM::EngineCore", program="/usr/bin/python3.11"))
    'VLLM::EngineCore'
    """
    words = [word for word in process.command.split(SEPARATOR) if word]
    if not words:
        return PurePath(process.program).name[:_LONGEST_NAME]
    first = PurePath(words[0]).name or words[0]
    if len(words) == 1:
        title = words[0].strip()
        return (first if title.startswith(("/", "./")) and " " not in title else title)[:_LONGEST_NAME]
    if not first.startswith(("python", "pypy")):
        return first[:_LONGEST_NAME]
    rest = iter(words[1:])
    for word in rest:
        if word == "-m":
            return next(rest, first)[:_LONGEST_NAME]
        if word == "-c":
            return "" if "multiprocessing" in next(rest, "") else f"{first} -c"
        if word in _WITH_VALUE:
            next(rest, None)
        elif not word.startswith("-") or word == "-":
            return PurePath(word).name[:_LONGEST_NAME]
    return first


def _mains(processes: Sequence[Process], boundaries: Mapping[int, int]) -> list[int]:
    """For every process the one whose subject it is in."""
    index = {process.ring: number for number, process in enumerate(processes)}
    names = [name_of(process) for process in processes]

    def master(number: int) -> int | None:
        """The process that this one works for."""
        process = processes[number]
        parent = index.get(process.parent_ring) if process.parent_ring else None
        if parent is None or boundaries.get(number):
            return None
        same = (processes[parent].rank, processes[parent].attempt) == (process.rank, process.attempt)
        return parent if same and names[number] in ("", names[parent]) else None

    mains = []
    for number in range(len(processes)):
        seen = {number}
        at = number
        while (above := master(at)) is not None and above not in seen:
            seen.add(above)
            at = above
        mains.append(at)
    return mains


def _holder(mains: Sequence[int], boundaries: Mapping[int, int]) -> int | None:
    """Which of the processes that claim one rank is it."""
    if len(mains) == 1:
        return mains[0]
    stepping = [main for main in mains if boundaries.get(main)]
    return stepping[0] if len(stepping) == 1 else None


def _names(processes: Sequence[Process], mains: Mapping[int, object], are_ranks: set[int]) -> dict[int, str]:
    alone = len(mains) == 1
    several_hosts = len({process.host for process in processes}) > 1
    nameless = _names_of_children(processes)
    named: dict[int, str] = {}
    for main in sorted(mains, key=lambda number: processes[number].created_ns):
        process = processes[main]
        name = nameless.get(main) or name_of(process)
        if not alone:
            where = f" on {host_text(process.host)}" if several_hosts and process.host else ""
            name += f" [pid {process.pid}{where}]"
        if process.rank is not None and main not in are_ranks:
            name += f" of rank {process.rank}" + (f" (attempt {process.attempt})" if process.attempt else "")
        named[main] = name
    # Programs of one process, by exec(); a pid that was given out again.
    so_far: Counter[str] = Counter()
    for main, name in named.items():
        so_far[name] += 1
        if so_far[name] > 1:
            named[main] = f"{name} #{so_far[name]}"
    return named


def _names_of_children(processes: Sequence[Process]) -> dict[int, str]:
    """By index, of processes without a name of their own: whose child they are and which, in the order of age."""
    index = {process.ring: number for number, process in enumerate(processes)}
    found: dict[int, str] = {}
    of_parent: Counter[int] = Counter()
    for number in sorted(range(len(processes)), key=lambda number: processes[number].created_ns):
        if name_of(processes[number]):
            continue
        ring = processes[number].parent_ring
        of_parent[ring] += 1
        parent = index.get(ring)  # older, if it is known, and so named already
        name = "python" if parent is None else found.get(parent) or name_of(processes[parent]) or "python"
        found[number] = f"{name} child {of_parent[ring]}"
    return found
