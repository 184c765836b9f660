"""Who made too few steps to be judged: there an empty list of leaks means nothing.

In: merged tables. Out: one note, or none.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from msmemscope.analysis.blocks import FEWEST_SECONDS
from msmemscope.analysis.findings import TOO_FEW_STEPS, Finding, at_the_start, note_about
from msmemscope.analysis.steps import WARM_UP

if TYPE_CHECKING:
    from msmemscope.analysis.blocks import Tracked

Ints = npt.NDArray[np.int64]


def too_few_steps(tracked: Tracked, min_steps: int) -> list[Finding]:
    """An empty list of leaks means nothing for a subject that made too few steps: say so.

    evidence: text, judged (how many subjects made enough).
    """
    subjects = tracked.subjects
    heard = [one for one in subjects if one.main in tracked.last_complete_step and not subjects.is_over(one)]
    before = _warm_ups(tracked) - WARM_UP  # steps of the parent
    made = {one.main: tracked.last_complete_step[one.main] - int(before[one.main]) for one in heard}
    few = [one for one in heard if made[one.main] < WARM_UP + min_steps]
    if not few:
        return []
    judged = len(heard) - len(few)
    most = max(0, *(made[one.main] for one in few))
    counted = any(tracked.boundaries.get(one.main) for one in few)
    note = replace(note_about(TOO_FEW_STEPS, few, subjects.ranks), last_step=most)
    names = [replace(note, processes=()).who] if note.ranks else []
    names += [replace(note, ranks=()).who] if note.processes else []
    who = at_the_start(" and ".join(names))
    if judged and not counted:
        text = f"{who}: no steps were seen, so nothing is said about leaks there; {judged} others were judged."
    elif not most and not counted:
        looked = "what grows was looked for second by second"
        text = f"{who}: no steps were seen; "
        if tracked.is_judged_by_time:
            text += looked + ". "
        else:
            text += f"without them what grows is said from {FEWEST_SECONDS} seconds on: run longer, or tell steps. "
        text += (
            "Leaks are told where msmemscope.step() is called once per iteration (in a server, per request or batch)."
        )
    else:
        enough = WARM_UP + min_steps
        fewest = max(0, min(made[one.main] for one in few))
        seen = f"{most}" if fewest == most else f"{fewest} to {most}"
        text = f"{who}: {seen} complete steps were seen; whether anything leaks is only said from {enough} on. "
        text += "Run longer." if counted else "Run longer, or call msmemscope.step() once per iteration."
    return [replace(note, sentence=text, evidence={"text": text, "judged": judged})]


def _warm_ups(tracked: Tracked) -> Ints:
    """Per process the step of its subject's first iteration: WARM_UP, but for a child that went on from a later step of
    its parent that step."""
    warm_ups = np.full(len(tracked.processes), WARM_UP, dtype=np.int64)
    for subject in tracked.subjects:
        made = tracked.boundaries.get(subject.main, 0)
        if made and tracked.processes[subject.main].parent_ring:
            first = tracked.last_complete_step.get(subject.main, -1) + 1 - made
            warm_ups[list(subject.members)] = max(first, WARM_UP)
    return warm_ups
