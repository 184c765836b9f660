"""Which failures to get memory are one event of the job: a rank that fails takes the others along.

In: the incidents of all processes, and the processes that the kernel killed for memory. Out: `Episode`s, each with its
failures in order of time, so the first is what the others followed from; and who else ended soon after.

Failures belong together while each follows the one before within TOGETHER_S, on the wall clocks of their hosts, which
agree far better than that. Those of ranks and those of other programs are kept apart. A failure that the program got
over at once (it had its memory at the next attempt) takes nobody along and is an episode of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from msmemscope.analysis.blocks import Tracked
    from msmemscope.analysis.subjects import Subject
    from msmemscope.folds.incidents import Incident

TOGETHER_S = 10.0
ENDED_S = 60.0  # torchrun ends the others within 30 s, and looks every few seconds


@dataclass(frozen=True, eq=False)
class Failed:
    """One failure of one process."""

    process: int
    at_ns: int  # of the wall clock
    incident: Incident | None  # None: the kernel killed the process at the limit of its control group

    @property
    def is_over(self) -> bool:
        """The program got its memory at the next attempt."""
        return self.incident is not None and self.incident.recovered


@dataclass(frozen=True)
class Episode:
    """failures: in order of time, of ranks or of other programs."""

    failures: tuple[Failed, ...]

    @property
    def first(self) -> Failed:
        return self.failures[0]


def find_episodes(tracked: Tracked) -> list[Episode]:
    """In order of time."""
    found = sorted(_failures(tracked), key=lambda one: (one.at_ns, tracked.subjects.number_of(one.process)))
    episodes = [Episode((one,)) for one in found if one.is_over]
    for of_ranks in (True, False):
        together: list[Failed] = []
        for one in found:
            if one.is_over or (tracked.subjects.of(one.process).rank is not None) != of_ranks:
                continue
            if together and one.at_ns - together[-1].at_ns > TOGETHER_S * 1e9:
                episodes.append(Episode(tuple(together)))
                together = []
            together.append(one)
        if together:
            episodes.append(Episode(tuple(together)))
    return sorted(episodes, key=lambda one: one.first.at_ns)


def ended_after(episode: Episode, tracked: Tracked) -> list[tuple[Subject, float]]:
    """The ranks that ended without a failure of their own within ENDED_S of one that did not outlive it, with the
    seconds between the first failure and their end, in order of time. That they ended because of it is not known."""
    processes, subjects = tracked.processes, tracked.subjects
    first = episode.first
    if subjects.of(first.process).rank is None or not _ended(first, tracked):
        return []
    members = {subjects.number_of(one.process) for one in episode.failures}
    found = []
    for number, subject in enumerate(subjects):
        process = processes[subject.main]
        if subject.rank is None or number in members or subjects.is_over(subject) or not process.ended_ns:
            continue
        after_s = (process.ended_ns + process.wall_offset_ns - first.at_ns) / 1e9
        if 0 <= after_s <= ENDED_S:
            found.append((subject, after_s))
    return sorted(found, key=lambda pair: pair[1])


def _ended(one: Failed, tracked: Tracked) -> bool:
    """Whether the process ended soon after, without a further step."""
    process = tracked.processes[one.process]
    if one.incident is None:
        return True
    ended_s = (process.ended_ns - one.incident.latest_ts) / 1e9
    return 0 <= ended_s <= ENDED_S and tracked.reached.get(one.process, 0) <= one.incident.step


def _failures(tracked: Tracked) -> Iterable[Failed]:
    processes = tracked.processes
    number = {process.ring: at for at, process in enumerate(processes)}
    for incident in tracked.incidents:
        at = number[incident.ring]
        yield Failed(at, incident.first.ts + processes[at].wall_offset_ns, incident)
    for at, process in enumerate(processes):
        if process.ended_for_memory:
            yield Failed(at, process.ended_ns + process.wall_offset_ns, None)


def first_of_each(failures: Sequence[Failed], tracked: Tracked) -> dict[int, Failed]:
    """By subject its first failure, in order of time."""
    found: dict[int, Failed] = {}
    for one in failures:
        found.setdefault(tracked.subjects.number_of(one.process), one)
    return found
