"""Why one rank uses more memory than the others: each is compared with the ranks that do the same work.

In: the tables of steps and sites, the samples of host memory. Out: a finding of the kind USES_MORE for every cause
(MAY_USE_MORE where ranks made few steps), a note of the kind USES_LESS for ranks that use less, of DIFFERS for two
ranks that nobody can judge by each other, of UNKNOWN_STAGES, and of STAGES_DIFFER (peer_stages.py). Who is whose peer:
peer_groups.py and coordinates.py; what is compared: peer_use.py; what is too much: outliers.py; how it is said:
peer_words.py.

A rank is told when it is an outlier of its group in the peak, in the level at the ends of steps or in what its pool has
reserved, and exceeds the median of its peers by min_share and by min_bytes, by more than the steps of any peer but one
differ among themselves, and by twice as much as is usual: ranks with sequences of random lengths are alike. Pools that
a rank exceeds at once are one finding, about the pool of the framework: the driver's blocks are its segments.

Where fewer than two ranks have made FEWEST_STEPS steps, those with FEWEST_FOR_CANDIDATES are compared, and one that
exceeds its peers by twice as much in each of its steps, and by three times what they lie apart, is a candidate: what
happens once, or grows, is not typical of so few.

The excess is explained by call stacks: what each held at the end of the last step (at the peak itself, where less than
half of it is there at the ends of steps, or where that is not all of it), less the median of the peers nearest to the
group's. Where a rank holds less, that is told, too. Where owners are told, so is whose it is.

evidence:
    figure          "peak", "end" or "reserved" of a pool, "rss" (at most) or "rss_end" of all host memory of a process
    peers_bytes     the median of the peers; share: the excess over it, null where they have nothing
    peers           the ranks it was compared with
    test            "Dixon's Q" or "modified z", "" for a pair
    per_rank        rank as text -> bytes (its excess), used, peers_bytes, device
    pools           every figure that is out, of the first rank: pool, figure, bytes, peers_bytes
    lines           of the first rank, largest first: file, line, function, bytes (excess), stack (16 digits),
                    only_here (no peer allocates there), peers_bytes, fed_more (peer_excess.py)
    owners          of the first rank, largest first: owner, bytes (beyond the peers'); [] where nobody named any
    other_bytes, other_lines    what further lines hold more than those of the peers
    less_bytes      what lines hold less than those of the peers; less: the first of these lines
    unexplained_bytes           of the excess, what the lines do not add up to
    leak            the line of the leak that it comes from, or of what fragments the pool, ""
    coordinate      the coordinate that all these ranks have and none of their peers, "ep=3", as frameworks told; ""
    load            null, or why it holds more: ratio (what it holds at the lines that are fed more, over what its
                    peers hold there), gets_more ("tokens", "data"), expert (its place among expert parallel ranks, "")
    drift_per_step  by how many bytes the distance of the first rank to its peers grows in each step, 0.0
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from msmemscope.analysis import peer_words
from msmemscope.analysis.analyzer import Analyzer, Group, Judged, Tables
from msmemscope.analysis.coordinates import by_coordinates
from msmemscope.analysis.findings import LEAK, LEAK_CANDIDATE, Finding, device_name
from msmemscope.analysis.fragmentation import FRAGMENTED
from msmemscope.analysis.outliers import FEWEST, outliers
from msmemscope.analysis.peer_excess import Excess, Explainer
from msmemscope.analysis.peer_groups import by_likeness, by_stage, read_degrees
from msmemscope.analysis.peer_owners import owners_of
from msmemscope.analysis.peer_stages import note_on_stages
from msmemscope.analysis.peer_use import (
    FEWEST_FOR_CANDIDATES,
    FEWEST_STEPS,
    RSS,
    Place,
    SiteLevels,
    Use,
    resident_use,
    use_by_place,
)
from msmemscope.analysis.steps import FIRST_STEP, too_few_for
from msmemscope.folds.segments import DRIVER_POOLS
from msmemscope.vocabulary import DeviceType

if TYPE_CHECKING:
    from msmemscope.analysis.blocks import Tracked
    from msmemscope.analysis.subjects import Subject

__all__ = ["PEERS", "PeerOptions", "judge"]

_TWICE = 2  # what is worth a word of many steps
_TIMES_APART = 3  # what any of its peers lies apart
_FEWEST_FOR_TWO = 8  # in a group: from there on several may be outliers
# Each with the fields of Use that say by how much it differs by chance.
_FIGURES = (("peak", "peak_swing"), ("end", "end_swing"), ("reserved", "peak_swing"))
_RSS_FIGURES = {"peak": "rss", "end": "rss_end", "reserved": "rss"}


@dataclass(frozen=True)
class PeerOptions:
    """What the analysis may be told."""

    parallel: str = ""
    """Sizes of the parallel groups, such as tp=2,pp=4,dp=8 (tp, cp, dp and pp; their product is the number of ranks):
    ranks of one pipeline stage are peers, tp goes fastest through the ranks, then cp, dp and pp. Without it ranks that
    stand in one stage by the word of their framework are, else those that run the same program and allocate at the same
    lines."""
    min_share: float = 0.05
    """A rank that exceeds the median of its peers by a smaller share of it is not told; 0 to 1."""
    min_bytes: int = 16777216
    """A rank that exceeds the median of its peers by fewer bytes is not told."""
    pair_share: float = 0.2
    """Of two ranks, which cannot be judged by each other, of resident memory and of stages: a difference of a smaller
    share is not told; 0 to 1."""
    pair_bytes: int = 67108864
    """Of two ranks, resident memory and stages: a difference of fewer bytes is not told."""

    def __post_init__(self) -> None:
        read_degrees(self.parallel)
        for name in ("min_share", "pair_share"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} takes a share from 0 to 1; got {getattr(self, name):g}")
        for name in ("min_bytes", "pair_bytes"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} takes 1 byte or more; got {getattr(self, name)}")


def judge(tables: Tables, options: PeerOptions) -> list[Finding]:
    """Outliers, largest first, then notes."""
    tracked = tables.tracked
    subjects = tracked.subjects
    ranks = _with_steps(tracked, FEWEST_STEPS)
    if has_few_steps := len(ranks) < 2:
        ranks = _with_steps(tracked, FEWEST_FOR_CANDIDATES)
    if len(ranks) < 2:
        return []
    degrees = read_degrees(options.parallel)
    size = int(np.prod(list(degrees.values()), dtype=np.int64)) if degrees else len(subjects.ranks)
    if size != len(subjects.ranks):
        return [peer_words.unknown_stages(options.parallel, size, subjects)]
    told = None if degrees else by_coordinates(tracked, ranks)
    if degrees:
        groups = by_stage(ranks, degrees)
    else:
        groups = by_likeness(tracked, ranks) if told is None else list(told.values())
    number = {one.main: one.rank or 0 for one in ranks}
    uses = use_by_place(tracked, number)
    if not has_few_steps:
        uses[RSS] = resident_use(tracked, tables.host, number)
    explainer = Explainer(tables.stack, tracked, SiteLevels(tracked))
    causes: dict[tuple[object, ...], list[Excess]] = defaultdict(list)
    for at, group in enumerate(groups):
        for excess in excesses([one.main for one in group], uses, options, has_few_steps=has_few_steps):
            explained = explainer.explain(excess)
            explained = replace(explained, owners=owners_of(tables, explained, uses[excess.place]))
            causes[at, excess.place, excess.is_more, explained.cause].append(explained)
    view = peer_words.View(tracked, number, _leak(tables), has_few_steps)
    found = [peer_words.finding(sorted(cause, key=lambda one: -one.bytes), view) for cause in causes.values()]
    if not has_few_steps:
        found += note_on_stages(
            _stages(groups, told, degrees),
            uses,
            number,
            subjects.ranks,
            share=options.pair_share,
            least=options.pair_bytes,
        )
    return sorted(found, key=lambda one: (one.is_note, -one.bytes, one.ranks))


def _with_steps(tracked: Tracked, fewest: int) -> list[Subject]:
    """Ranks that made so many complete steps after the first iteration."""
    subjects = tracked.subjects
    return [
        one
        for one in subjects
        if one.rank is not None
        and not subjects.is_over(one)
        and tracked.last_complete_step.get(one.main, -1) - FIRST_STEP + 1 >= fewest
    ]


def _stages(
    groups: Sequence[Sequence[Subject]],
    told: Mapping[tuple[object, ...], Sequence[Subject]] | None,
    degrees: Mapping[str, int],
) -> dict[int, list[int]]:
    """The processes of each stage, where all groups are stages of one pipeline."""
    if degrees:
        return {at: [one.main for one in group] for at, group in enumerate(groups)}
    if told is None or len({key[:-1] for key in told}) > 1:
        return {}
    return {int(str(key[-1])): [one.main for one in group] for key, group in told.items()}


def excesses(
    group: Sequence[int], uses: dict[Place, dict[int, Use]], options: PeerOptions, *, has_few_steps: bool
) -> Iterator[Excess]:
    """What is told of the processes of one group, one for each of them and kind of device."""
    told: dict[tuple[int, bool, bool, int], list[Excess]] = defaultdict(list)
    for place, of_place in uses.items():
        if place == RSS and not all(process in of_place for process in group):
            continue  # nobody looked at all of them
        everybody = [of_place.get(process, Use()) for process in group]
        freed = np.array([use.freed for use in everybody], np.int64)
        for kind, (figure, swing) in enumerate(_FIGURES):
            values = np.array([getattr(use, figure) for use in everybody], np.int64)
            by_chance = np.array([getattr(use, swing) for use in everybody], np.int64)
            is_pair = len(group) < FEWEST
            signs = np.sign(values - values[::-1]) if is_pair else outliers(values)
            for at in np.flatnonzero(signs > 0 if is_pair else signs).tolist():
                others = np.delete(values, at)
                usual = int(np.median(others))
                excess = int(values[at]) - usual
                # Much that differs between processes for no harm is in their resident memory.
                is_rough = is_pair or place == RSS
                share = options.pair_share if is_rough else options.min_share
                least = options.pair_bytes if is_rough else options.min_bytes
                heap = max(everybody[at].freed, int(np.median(np.delete(freed, at))))
                worth_a_word = max(least, share * usual, _chance(np.delete(by_chance, at)), heap)
                if abs(excess) <= worth_a_word:
                    continue
                worth_a_word *= 1 if is_pair else _TWICE  # the limits of pairs are wide
                if has_few_steps and everybody[at].least[kind] - usual <= max(worth_a_word, _apart(others)):
                    continue  # a rank that uses less is not told of few steps either
                nearest = np.argsort(np.abs(others - usual), kind="stable")
                peers = [process for number, process in enumerate(group) if number != at]
                use = everybody[at]
                # Pinned host memory is no part of the tensors' pool.
                is_pinned = place[0] == DeviceType.CPU and place[1] in DRIVER_POOLS
                told[place[0], is_pinned, excess > 0, group[at]].append(
                    Excess(
                        process=group[at],
                        peers=tuple(peers[number] for number in nearest.tolist()),
                        place=place,
                        devices=use.devices or next((one.devices for one in everybody if one.devices), ()),
                        figure=_RSS_FIGURES[figure] if place == RSS else figure,
                        used=int(values[at]),
                        usual=usual,
                        step=use.peak_step,
                    )
                )
    for figures in told.values():
        # The framework's pool before the driver's, blocks before what is reserved for them; the larger figure of it.
        main = min(
            figures,
            key=lambda one: (
                *(one.place[1] in DRIVER_POOLS, one.place == RSS),
                *(one.figure == "reserved", -one.bytes, one.figure not in ("peak", "rss")),
            ),
        )
        # What is there at the ends of steps, too, is best explained by what was alive at the last of them; what mostly
        # is not, by what was alive at the peak.
        at_ends = (one for one in figures if one.place == main.place and one.figure == "end")
        lasts = any(2 * one.bytes >= main.bytes for one in at_ends)
        yield main.with_figures(figures, lasts=lasts)


def _chance(swings: npt.NDArray[np.int64]) -> float:
    """By how many bytes a rank may exceed its peers by chance, by the swings of the peers: its own would excuse what
    happens once. As it is the highest of many, twice what is usual, and what any peer but one has shown."""
    return max(2 * float(np.median(swings)), float(np.sort(swings)[-2:][0]))


def _apart(others: npt.NDArray[np.int64]) -> float:
    """By how many bytes a rank must exceed its peers to be far from all of them: ranks may differ by themselves, in
    each step. Of many peers one may be as far: Dixon's test, of few, is for one alone."""
    distances = np.sort(np.abs(others - np.median(others)))
    return _TIMES_APART * float(distances[-1 if len(others) + 1 < _FEWEST_FOR_TWO else -2])


def _leak(tables: Tables) -> peer_words.LeakOf:
    """Which leak, or fragmented pool, if any, explains half of an excess or more."""

    def leak_of(rank: int, peers: Sequence[int], device_type: int, excess: int, figure: str) -> Finding | None:
        for leak in tables.earlier:
            kinds = (LEAK, LEAK_CANDIDATE, FRAGMENTED) if figure == "reserved" else (LEAK, LEAK_CANDIDATE)
            if leak.kind not in kinds or rank not in leak.ranks:
                continue
            if not leak.device.startswith(device_name(device_type, -1)):
                continue
            per_rank, bytes_ = leak.evidence["per_rank"], "pinned_bytes" if leak.kind == FRAGMENTED else "bytes"
            usual = float(np.median([per_rank.get(str(peer), {}).get(bytes_, 0) for peer in peers]))
            if 2 * (per_rank[str(rank)][bytes_] - usual) >= excess:
                return leak
        return None

    return leak_of


def verdict(judged: Judged) -> str:
    """The clause of the last line: the largest."""
    found = judged.accused
    if not found:
        return ""
    more = f" and {len(found) - 1} more" if len(found) > 1 else ""
    few = ", in too few steps to be sure" if found[0].kind == peer_words.MAY_USE_MORE else ""
    return f"{found[0].evidence['clause']}{few}{more}"


PEERS = Analyzer(
    name="peers",
    needs=("sites", "steps", "sums", "peaks", "host", "leaks", "fragmentation"),
    options=PeerOptions,
    judge=judge,
    files={"peers": peer_words.COLUMNS},
    uses=("owners",),
    asked_by=("leaks", "oom", "peers"),  # what is a leak must not be told as a second mistake
    groups=(
        Group("MORE THAN PEERS", order=40, more="{count:,} more like the last: cluster/peers.csv"),
        Group("MAY USE MORE", order=41, more="{count:,} more like the last: cluster/peers.csv"),
    ),
    unable=lambda tables: too_few_for(tables.tracked, FEWEST_FOR_CANDIDATES, ranks=2),
    verdict=verdict,
)
