"""Why a request for memory failed: what would have had to be otherwise for it to succeed.

In: one incident, and what is known of its device and of its process's leaks. Out: a `Cause`, the first that applies of
those below. Each rests on figures that it brings along; where a figure is not known, the causes that need it are left
out, never guessed.

    TOO_LARGE       the request alone is larger than the device
    LIMIT           the process may not map as much (RLIMIT_AS), or its control group is full
    LEAK            it did not fit into what was free, and with what has leaked it would have
    OTHER_STREAM    the pool has as many free bytes, but of other streams, as a snapshot at the failure says
    FRAGMENTED      the pool has as many free bytes in its segments, but not in one piece
    REFUSED         the device has as many bytes free, and a tenth of it more, of which the request is no half: a limit
                    of the pool, or what the driver does not say
    NEIGHBOUR       others hold a tenth of the device or more
    LARGE_REQUEST   the request takes more than half of the device
    FULL            nothing of all that: what is alive takes the device
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from msmemscope.analysis.findings import LEAK as LEAKS
from msmemscope.analysis.findings import Finding, device_name, format_bytes
from msmemscope.analysis.fragmentation import ALLOC_CONF
from msmemscope.analysis.live_lines import place_of
from msmemscope.text import counted
from msmemscope.vocabulary import DeviceType

if TYPE_CHECKING:
    from msmemscope.analysis.source_text import Sources
    from msmemscope.analysis.subjects import Subject
    from msmemscope.analysis.usage import DeviceUse
    from msmemscope.folds.incidents import Incident
    from msmemscope.folds.snapshots import PoolSnapshot

TOO_LARGE, LIMIT, LEAK, FRAGMENTED, OTHER_STREAM = "too_large", "limit", "leak", "fragmented", "other_stream"
REFUSED, NEIGHBOUR, LARGE_REQUEST, FULL = "refused", "neighbour", "large_request", "full"

_MUCH = 10  # a device has so many times what others may hold on it without a word: contexts, libraries


@dataclass(frozen=True)
class Cause:
    """clause completes a sentence; advice is one, "" for none; figures: bytes it rests on, and places."""

    name: str
    clause: str
    advice: str
    figures: Mapping[str, int | str]


@dataclass(frozen=True)
class Facts:
    """What is known beside the incident. pools, alive: as in oom.py's evidence. others: bytes of the device that are
    not the process's, now and at the first sample; None: nobody says."""

    subject: Subject
    use: DeviceUse
    pools: Sequence[Mapping[str, Any]]
    alive: Sequence[Mapping[str, Any]]
    leaks: Sequence[Finding]
    sources: Sources
    others: int | None = None
    others_at_first: int | None = None
    device_free: int | None = None
    """As the driver itself said at the failure; a sample may be too old to say what was free."""
    snapshot: PoolSnapshot | None = None
    """Of the device's pool, taken at the failure."""
    own: int = 0
    """Bytes of the device that are the process's: what it has of the driver, as it was recorded or sampled, at least
    what its pools say they have."""


def cause_of(incident: Incident, facts: Facts) -> Cause:
    """The first that applies."""
    for look in (_too_large, _limit, _leak, _other_stream, _fragmented, _refused, _neighbour, _large_request):
        found = look(incident, facts)
        if found is not None:
            return found
    top = facts.alive[0] if facts.alive else None
    advice = ""
    if top is not None:
        size = f"{format_bytes(top['bytes'])} in {counted(top['blocks'], 'block')}"
        advice = f"Hold less at {place_of(top, facts.sources)}: {size}."
    return Cause(
        FULL, "what is alive takes the device", advice, {"alive_bytes": sum(one["bytes"] for one in facts.alive)}
    )


def leaks_of(subject: Subject, device_type: int, leaks: Sequence[Finding]) -> list[tuple[Finding, int]]:
    """The leaks of a subject on a type of device with its bytes of each, largest first."""
    found = [
        (one, int(one.evidence["per_rank"].get(subject.key, {}).get("bytes", 0)))
        for one in leaks
        if one.kind == LEAKS and one.concerns(subject) and one.device.partition(":")[0] == device_name(device_type, -1)
    ]
    return sorted(found, key=lambda pair: -pair[1])


def _too_large(incident: Incident, facts: Facts) -> Cause | None:
    total = facts.use.total
    if not total or incident.asked <= total:
        return None
    whole = "the host's memory" if incident.device_type == DeviceType.CPU else "the device"
    advice = (
        f"The request alone is larger than {whole} ({format_bytes(total)}): look at the tensor's shape, split it or "
        "shard it over ranks."
    )
    return Cause(TOO_LARGE, f"the request alone is larger than {whole}", advice, {"device_total": total})


def _limit(incident: Incident, _facts: Facts) -> Cause | None:
    limit = incident.address_space_limit
    if not limit:
        return None
    clause = f"the process may map {format_bytes(limit)} in all (RLIMIT_AS)"
    advice = f"Raise the limit of its address space ({format_bytes(limit)}: ulimit -v, RLIMIT_AS), or ask for less."
    return Cause(LIMIT, clause, advice, {"address_space_limit": limit})


def _leak(incident: Incident, facts: Facts) -> Cause | None:
    leaks = leaks_of(facts.subject, incident.device_type, facts.leaks)
    leaked, free = sum(size for _, size in leaks), facts.device_free or 0
    in_pools = sum(pool["free"] or 0 for pool in facts.pools)
    if not leaked or free >= incident.asked or leaked + free + in_pools < incident.asked:
        return None
    first, size = leaks[0]
    clause = f"{format_bytes(leaked)} had leaked, most of it at {first.place}"
    advice = f"Mend the leak at {first.place} first: it keeps {format_bytes(first.bytes_per_step)} per step."
    return Cause(
        LEAK, clause, advice, {"leaked_bytes": leaked, "largest_leak": first.place, "largest_leak_bytes": size}
    )


def _other_stream(incident: Incident, facts: Facts) -> Cause | None:
    """A pool gives what is free of a segment to the segment's stream alone."""
    one = facts.snapshot
    if one is None or one.reserved - one.allocated < incident.asked:
        return None
    if one.other_largest < incident.asked and one.reserved - one.allocated - one.other_free >= incident.asked:
        return None
    if not one.other_free:
        return None
    free = format_bytes(one.other_free)
    clause = (
        f"{free} that are free in the pool are of {one.streams - 1:,} other stream{'' if one.streams == 2 else 's'}"
    )
    advice = f"Work on fewer streams, or call empty_cache() before: {free} of the pool serve other streams alone."
    return Cause(OTHER_STREAM, clause, advice, {"other_free": one.other_free, "other_largest": one.other_largest})


def _fragmented(incident: Incident, facts: Facts) -> Cause | None:
    fitting = [pool for pool in facts.pools if (pool["free"] or 0) >= incident.asked]
    if not fitting or any((pool["largest_free"] or 0) >= incident.asked for pool in fitting):
        return None
    pool = max(fitting, key=lambda one: int(one["free"]))
    largest = pool["largest_free"] or 0
    piece = f", the largest piece {format_bytes(largest)}" if largest else ""
    variable = ALLOC_CONF.get(incident.device_type)
    cure = f": set {variable}=expandable_segments:True" if variable else ""
    free = format_bytes(pool["free"])
    figures: dict[str, int | str] = {"free_bytes": int(pool["free"]), "largest_free": int(largest)}
    return Cause(
        FRAGMENTED,
        f"the pool is fragmented: {free} of it are free{piece}",
        f"The pool is fragmented: {free} of it are free{piece}{cure}.",
        figures,
    )


def _refused(incident: Incident, facts: Facts) -> Cause | None:
    free, by = facts.device_free, "the driver"
    if free is None and facts.use.total and facts.others is not None:
        free, by = facts.use.total - facts.others - facts.own, "the pool"  # the driver was not asked, or not heard
    # Of less a driver may keep back what it calls free; for more than half of a card its pieces may be too small.
    total = facts.use.total or 0
    if free is None or _MUCH * (free - incident.asked) < total or 2 * incident.asked > total:
        return None
    what = f"{format_bytes(free)} of the device were free"
    advice = (
        f"{what[0].upper()}{what[1:]}: look for a limit of the pool (set_per_process_memory_fraction) or of the card."
    )
    return Cause(REFUSED, f"{by} refused it though {what}", advice, {"device_free": free})


def _neighbour(_incident: Incident, facts: Facts) -> Cause | None:
    others, total = facts.others, facts.use.total
    if others is None or not total or _MUCH * others < total:
        return None
    figures: dict[str, int | str] = {"others_bytes": others}
    since = ""
    if facts.others_at_first is not None:
        figures["others_at_first"] = facts.others_at_first
        if others - facts.others_at_first >= max(total // _MUCH, 1):
            since = f", {format_bytes(others - facts.others_at_first)} more than at the start"
    clause = f"others held {format_bytes(others)} of the device{since}"
    advice = (
        f"{format_bytes(others)} of the device are held by others than this process's own allocations{since}: look for "
        "another process on the card."
    )
    return Cause(NEIGHBOUR, clause, advice, figures)


def _large_request(incident: Incident, facts: Facts) -> Cause | None:
    total = facts.use.total
    if not total or 2 * incident.asked <= total:
        return None
    advice = f"One tensor of {format_bytes(incident.asked)} takes more than half of the device: split it."
    return Cause(LARGE_REQUEST, "the request takes more than half of the device", advice, {"device_total": total})
