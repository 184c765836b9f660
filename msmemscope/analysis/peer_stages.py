"""Whether the stages of a pipeline need what their layers predict.

In: the ranks of each stage, and what they used. Out: a note of the kind STAGES_DIFFER where a stage needs more.

Layers that are alike need, with one forward and one backward pass in turn (1F1B), the same weights and states in each
stage, and activations of as many micro-batches as stages lie from here to the last: of the first of p stages p, of the
last one. So of a stage s is predicted: what stages usually hold at the ends of steps (the median over them), and (p -
s)/p of what the first one has on top of that at its peak. Embeddings, the head and the loss, and layers that are shared
out unevenly, are what a stage has beyond it. With fewer micro-batches than stages, or another schedule, the prediction
is too low for the later ones: the note names what it supposes.

evidence: stages, in order: {stage, ranks, peak_bytes, end_bytes, predicted_bytes}, medians over the stage's ranks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from msmemscope.analysis.findings import Finding, device_name, fold_ranks, format_bytes, note_about, pool_name, scope_of
from msmemscope.folds.segments import DRIVER_POOLS
from msmemscope.vocabulary import DeviceType, Pool

if TYPE_CHECKING:
    from msmemscope.analysis.peer_use import Place, Use

STAGES_DIFFER = "stages_differ"
_FEWEST = 3  # stages: of two nobody knows which is as usual


def note_on_stages(
    stages: Mapping[int, Sequence[int]],
    uses: Mapping[Place, Mapping[int, Use]],
    rank_of: Mapping[int, int],
    job: Sequence[int],
    *,
    share: float,
    least: int,
) -> list[Finding]:
    """stages: by number its processes. share, least: of what a stage has beyond the prediction. One note at most."""
    if len(stages) < _FEWEST:
        return []
    members = [process for processes in stages.values() for process in processes]
    place = _main_place(uses, members)
    if place is None:
        return []
    of_place, order = uses[place], sorted(stages)
    peaks = np.array([_median(of_place, stages[stage], "peak") for stage in order])
    ends = np.array([_median(of_place, stages[stage], "end") for stage in order])
    predicted = int(np.median(ends)) + (peaks[0] - ends[0]) * np.arange(len(order), 0, -1) // len(order)
    beyond = peaks - predicted
    out = [at for at in range(len(order)) if beyond[at] > max(least, share * predicted[at])]
    if not out:
        return []
    ranks = tuple(sorted(rank_of[process] for at in out for process in stages[order[at]]))
    rows: list[dict[str, Any]] = [
        {
            "stage": stage,
            "ranks": fold_ranks(rank_of[process] for process in stages[stage]),
            "peak_bytes": int(peaks[at]),
            "end_bytes": int(ends[at]),
            "predicted_bytes": int(predicted[at]),
        }
        for at, stage in enumerate(order)
    ]
    said = ", ".join(format_bytes(int(peak)) for peak in peaks)
    worst = max(out, key=lambda at: beyond[at])
    more = ", ".join(f"stage {order[at]} {format_bytes(int(beyond[at]))}" for at in out)
    return [
        replace(
            note_about(STAGES_DIFFER, (), job),
            confidence=0.5,
            ranks=ranks,
            scope=scope_of(ranks, job),
            device=device_name(place[0], -1),
            pool=pool_name(place[1], place[0]),
            bytes=int(beyond[worst]),
            evidence={"stages": rows},
            sentence=f"stages 0-{order[-1]} of the pipeline use {said} at the peak; more than layers that are alike "
            f"would need (1F1B, as many micro-batches as stages): {more}.",
            details=tuple(
                f"stage {row['stage']}, ranks {row['ranks']}: {format_bytes(row['peak_bytes'])} at the peak "
                f"(predicted {format_bytes(row['predicted_bytes'])}), {format_bytes(row['end_bytes'])} at steps' ends"
                for row in rows
            ),
        )
    ]


def _main_place(uses: Mapping[Place, Mapping[int, Use]], members: Sequence[int]) -> Place | None:
    """The framework's pool on cards that holds most; of a job without cards the host's."""
    total = {
        place: sum(of_place[one].peak for one in members if one in of_place)
        for place, of_place in uses.items()
        if place[1] not in (*DRIVER_POOLS, Pool.NONE)
    }
    return max(total, key=lambda place: (place[0] != DeviceType.CPU, total[place]), default=None)


def _median(of_place: Mapping[int, Use], processes: Sequence[int], figure: str) -> int:
    return int(np.median([getattr(of_place[one], figure) if one in of_place else 0 for one in processes]))
