"""Releases that nobody saw, because a ring was full: a block whose FREE was dropped looks alive for ever.

In: merged tables. Out: how many blocks of each process may be dead though they look alive, and a note that says so.
Each lost release explains one block at most, so what is claimed of a call stack must be more blocks than those.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from msmemscope.analysis.findings import LOST_RELEASES, Finding, at_the_start, note_about
from msmemscope.text import counted

if TYPE_CHECKING:
    from msmemscope.analysis.blocks import Tracked
    from msmemscope.tables.process import Process


def lost_releases(process: Process) -> int:
    """Blocks of that process that may have been freed unseen."""
    return process.lost.get("FREE", 0)


def note_on_lost_releases(tracked: Tracked, unclaimed: int) -> list[Finding]:
    """One note, or none. unclaimed: sites that seem to grow by no more blocks than were freed unseen.

    evidence: text, unclaimed, releases (rank as text, or name of a process that is none -> how many).
    """
    subjects = [one for one in tracked.subjects if not tracked.subjects.is_over(one)]
    lost = {one: sum(lost_releases(tracked.processes[number]) for number in one.members) for one in subjects}
    concerned = [one for one in subjects if lost[one]]
    if not unclaimed or not concerned:
        return []
    note = note_about(LOST_RELEASES, concerned, tracked.subjects.ranks)
    note = replace(note, processes=() if note.ranks else note.processes)  # about ranks or others
    lines = f"{counted(unclaimed, 'call stack seems', 'call stacks seem')} to grow"
    dropped = counted(sum(lost.values()), "release was", "releases were")
    text = (
        f"{at_the_start(note.who)}: {dropped} dropped (a full ring), and blocks whose "
        f"release is missing look alive. {lines}, by no more blocks than that: nothing is claimed of them."
    )
    releases = {one.key: lost[one] for one in concerned}
    return [replace(note, sentence=text, evidence={"text": text, "unclaimed": unclaimed, "releases": releases})]
