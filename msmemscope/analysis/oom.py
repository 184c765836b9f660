"""Out of memory: what was asked for and by whom, what was alive, why there was no more, and what would help.

In: incidents (folds/incidents.py), processes that the kernel killed, the frames of stacks, leaks already found, the
samples of memory use. Out: findings of the kind OUT_OF_MEMORY. Failures that belong together, on however many ranks,
are one (oom_episodes.py), about the line of the first; so is what happens at that line again later. Why: oom_cause.py.

evidence:
    text            the sentence
    cause           {name (oom_cause.py), clause, and the figures that it rests on}, of the first failure
    incidents       how many, over all ranks; per_rank: rank, or name of a process that is none -> of its first one
                    {step, device, asked_bytes, after_s (since the first of all), cause, place}, and incidents: how many
    first           rank or process that failed first
    order           of the first episode, in order of time: {who, after_s, step, asked_bytes, place, cause}; a killed
                    process has asked for 0. more_in_order: beyond those
    ended           ranks that ended soon after a failure that was the end of its rank: rank -> seconds after it
    recovered       the program got its memory at the next attempt
    failures        of the first incident, in order: {function, code, bytes, pool}; more_failures: beyond those
    alive           of the first incident, by line and pool, largest first: {file, line, function, pool, owner, bytes,
                    blocks}; "before recording began" instead of a line for blocks from then
    alive_bytes, alive_blocks
    owners          the same by owner, largest first: {owner, bytes}; of blocks of which somebody told one
    piece_bytes     physical memory that the failing request had already got, in pieces; not among `alive`
    pools           {pool, used, reserved, free, largest_free}; reserved as the pool says, else as its segments say
    device_used, device_total, device_free, others_bytes   null where nobody says
    limit, used, resident   of a killed process instead of what its request was: killed.py
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from msmemscope.analysis.analyzer import Analyzer, Group, Judged, Tables
from msmemscope.analysis.findings import OUT_OF_MEMORY, Finding, device_name, pool_name, scope_of
from msmemscope.analysis.killed import killed, sentence_of
from msmemscope.analysis.live_lines import line_of
from msmemscope.analysis.merged_stack import merged
from msmemscope.analysis.near_limit import HEADLINE, NEAR_LIMIT, find_near
from msmemscope.analysis.oom_cause import Cause
from msmemscope.analysis.oom_episodes import Episode, Failed, ended_after, find_episodes, first_of_each
from msmemscope.analysis.oom_facts import Scene, failure_with_stack, scene_of
from msmemscope.analysis.oom_words import closing, details_of, first_of, order_lines, request_sentence

if TYPE_CHECKING:
    from msmemscope.folds.incidents import Failure, Incident

_MOST_IN_ORDER = 64


@dataclass(frozen=True)
class OomOptions:
    """What the analysis may be told."""

    lines: int = 10
    """So many lines that held the most memory are told."""

    def __post_init__(self) -> None:
        if self.lines < 0:
            raise ValueError(f"lines takes a number from 0 on; got {self.lines}")


def judge(tables: Tables, options: OomOptions) -> list[Finding]:
    """One finding for each line that ran out of memory first, those that ended in failure first; then who came near
    the limit of the host's memory."""
    tracked = tables.tracked
    groups: dict[tuple[Any, ...], list[Episode]] = defaultdict(list)
    scenes = _Scenes(tables, options.lines)
    for episode in find_episodes(tracked):
        first = episode.first
        is_rank = tracked.subjects.of(first.process).rank is not None
        groups[first.incident is None, first.is_over, is_rank, scenes.line(first)].append(episode)
    found = [_finding(group, scenes) for group in groups.values()]
    found.sort(key=lambda one: (one.severity != "error", one.first_step, one.file, one.line))
    return [*found, *find_near(tables, options.lines)]


class _Scenes:
    """What there is to say of failures, each looked at once."""

    def __init__(self, tables: Tables, lines: int) -> None:
        self.tables, self.lines = tables, lines
        self._of: dict[Failed, Scene] = {}

    def of(self, one: Failed) -> Scene:
        """Of a failed request."""
        if one not in self._of:
            self._of[one] = scene_of(self.tables, one, self.lines)
        return self._of[one]

    def cause(self, one: Failed) -> Cause:
        return self.of(one).cause if one.incident is not None else killed(self.tables, one.process, 0)[1]

    def line(self, one: Failed) -> tuple[str, int]:
        """Who asked; of a killed process nobody."""
        if one.incident is None:
            return "", 0
        failure = failure_with_stack(one.incident, self.tables.stack)
        frame = line_of(tuple(self.tables.stack(failure.stack_py)) or tuple(self.tables.stack(failure.stack_c)))
        return (frame.file, frame.line) if frame else ("", 0)


def _finding(group: Sequence[Episode], scenes: _Scenes) -> Finding:
    tracked = scenes.tables.tracked
    episode = group[0]
    first, subject = episode.first, tracked.subjects.of(episode.first.process)
    failures = [one for some in group for one in some.failures]
    members = [tracked.subjects[number] for number in sorted({tracked.subjects.number_of(f.process) for f in failures})]
    ranks = tuple(sorted({one.rank for one in members if one.rank is not None}))
    if first.incident is None:
        finding, cause = killed(scenes.tables, first.process, scenes.lines)
    else:
        finding, cause = _of_request(first, first.incident, scenes), scenes.of(first).cause
    steps = [_step(one, scenes) for one in failures]
    finding = replace(
        finding,
        ranks=ranks,
        scope=scope_of(ranks, tracked.subjects.ranks),
        processes=tuple(one.name for one in members if one.rank is None),
        first_step=min(steps),
        last_step=max(steps),
    )
    evidence = finding.evidence
    # What happened last may have been the end; what happened before was survived.
    ended = {one.key: round(after_s, 1) for one, after_s in ended_after(group[-1], tracked)}
    evidence |= {
        "incidents": len(failures),
        "recovered": first.is_over,
        "cause": {"name": cause.name, "clause": cause.clause, **cause.figures},
        "first": subject.key,
        "order": [_in_order(one, first, scenes) for one in episode.failures[:_MOST_IN_ORDER]],
        "more_in_order": max(len(episode.failures) - _MOST_IN_ORDER, 0),
        "per_rank": _per_rank(failures, first, scenes),
        "ended": ended,
    }
    is_together = len({one.process for one in episode.failures}) > 1
    beginning = first_of(subject.label) if is_together else ""
    say = sentence_of if first.incident is None else request_sentence
    text = "; ".join([say(finding, beginning, scenes.tables.sources), *closing(finding, cause)]) + "."
    evidence["text"] = text
    details = finding.details if first.incident is None else details_of(evidence)
    return replace(finding, sentence=text, details=(*details, *order_lines(evidence, is_together=is_together)))


def _of_request(first: Failed, incident: Incident, scenes: _Scenes) -> Finding:
    """Of one incident alone."""
    tables, scene = scenes.tables, scenes.of(first)
    failure = failure_with_stack(incident, tables.stack)
    site = merged(tuple(tables.stack(failure.stack_py)), tuple(tables.stack(failure.stack_c)))
    frame = line_of(tuple(tables.stack(failure.stack_py)) or tuple(tables.stack(failure.stack_c)))
    evidence: dict[str, Any] = {
        "failures": [_failure(one, incident.device_type, tables) for one in incident.failures],
        "more_failures": incident.more_failures,
        "alive": list(scene.alive[: scenes.lines]),
        "piece_bytes": incident.piece_bytes,
        "alive_bytes": int(incident.alive["size"].sum()),
        "alive_blocks": len(incident.alive["size"]),
        "owners": list(scene.owners[: scenes.lines]),
        "pools": list(scene.pools),
        "device_used": scene.use.used,
        "device_total": scene.use.total,
        "device_free": scene.device_free,
        "others_bytes": scene.others,
    }
    return Finding(
        kind=OUT_OF_MEMORY,
        headline="OUT OF MEMORY",
        severity="warning" if incident.recovered else "error",
        confidence=1.0,
        ranks=(),
        scope="",
        device=device_name(incident.device_type, incident.device),
        pool=pool_name(incident.first.pool, incident.device_type),
        first_step=incident.step,
        last_step=incident.step,
        bytes=incident.asked,
        bytes_per_step=0.0,
        blocks=evidence["alive_blocks"],
        site=site,
        file=frame.file if frame else "",
        line=frame.line if frame else 0,
        function=frame.function if frame else "",
        evidence=evidence,
        advice=scene.cause.advice,
    )


def _failure(failure: Failure, device_type: int, tables: Tables) -> dict[str, Any]:
    return {
        "function": tables.text(failure.name),
        "code": failure.code,
        "bytes": failure.size,
        "pool": pool_name(failure.pool, device_type),
    }


def _step(one: Failed, scenes: _Scenes) -> int:
    return one.incident.step if one.incident is not None else scenes.tables.tracked.reached.get(one.process, 0)


def _in_order(one: Failed, first: Failed, scenes: _Scenes) -> dict[str, Any]:
    file, line = scenes.line(one)
    return {
        "who": scenes.tables.tracked.subjects.of(one.process).key,
        "after_s": round((one.at_ns - first.at_ns) / 1e9, 3),
        "step": _step(one, scenes),
        "asked_bytes": one.incident.asked if one.incident is not None else 0,
        "place": f"{file}:{line}" if file else "",
        "cause": scenes.cause(one).name,
    }


def _per_rank(failures: Sequence[Failed], first: Failed, scenes: _Scenes) -> dict[str, dict[str, Any]]:
    tracked = scenes.tables.tracked
    count = Counter(tracked.subjects.of(one.process).key for one in failures)
    found: dict[str, dict[str, Any]] = {}
    for one in first_of_each(failures, tracked).values():
        told = _in_order(one, first, scenes)
        device = "cpu" if one.incident is None else device_name(one.incident.device_type, one.incident.device)
        who = told.pop("who")
        found.setdefault(who, told | {"device": device, "incidents": count[who]})  # of two attempts the earlier one's
    return found


def verdict(judged: Judged) -> str:
    """The clause of the last line: only what nobody got over."""
    failed = [one for one in judged.accused if one.severity == "error"]
    if not failed:
        return ""
    where = f" at {failed[0].place}" if failed[0].file else ""
    more = f" and {len(failed) - 1} more" if len(failed) > 1 else ""
    return f"{failed[0].who} ran out of memory{where}{more}"


def figures(judged: Judged) -> dict[str, Any]:
    """Of summary.json."""
    left_out = judged.tables.tracked.left_out_incidents if judged.looked else 0
    return {
        "out_of_memory": len(judged.of_kind(OUT_OF_MEMORY)),
        "near_limit": len(judged.of_kind(NEAR_LIMIT)),
        "left_out_incidents": left_out,
    }


OOM = Analyzer(
    name="oom",
    needs=("incidents", "usage", "owners", "leaks"),
    options=OomOptions,
    judge=judge,
    groups=(
        Group(
            "OUT OF MEMORY",
            tone="bad",
            order=0,
            shown=4,
            more="incidents beside these: {count:,}; all are in cluster/summary.json",
            left_out=lambda tables: tables.tracked.left_out_incidents,
        ),
        Group(HEADLINE, order=5, shown=4),
    ),
    verdict=verdict,
    figures=figures,
)
