"""What is known of one failed request: what was alive, what the pools and the device had, and why there was no more.

In: an incident, the samples of memory use, the owners of its process, the leaks. Out: a `Scene`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from msmemscope.analysis.findings import device_name, pool_name
from msmemscope.analysis.live_lines import StackOf, alive_by_line
from msmemscope.analysis.oom_cause import Cause, Facts, cause_of
from msmemscope.analysis.owners import owner_texts
from msmemscope.analysis.usage import DeviceUse
from msmemscope.folds.segments import DRIVER_POOLS
from msmemscope.vocabulary import DeviceType

if TYPE_CHECKING:
    from msmemscope.analysis.analyzer import Tables
    from msmemscope.analysis.oom_episodes import Failed
    from msmemscope.folds.incidents import Failure, Incident
    from msmemscope.folds.snapshots import PoolSnapshot

Rows = tuple[dict[str, Any], ...]
_AT_FAILURE_NS = 5_000_000_000


@dataclass(frozen=True)
class Scene:
    """alive, owners, pools, device_free: as in oom.py's evidence. others: bytes of the device that are not the
    process's."""

    alive: Rows
    owners: Rows
    pools: Rows
    use: DeviceUse
    others: int | None
    cause: Cause
    device_free: int | None = None


def scene_of(tables: Tables, one: Failed, lines: int) -> Scene:
    """Of a failed request; lines: so many owners are named."""
    incident = one.incident
    if incident is None:
        raise ValueError("a killed process has asked for nothing")
    device = device_name(incident.device_type, incident.device)
    sampled = tables.usage.at(incident.ring, device, incident.first.ts)
    use = _use(incident, sampled)
    alive = tuple(alive_by_line(incident.alive, incident.device_type, tables.stack))
    pools = _pools(incident)
    own = max(incident.driver_bytes, use.process_used or 0, sum(pool["reserved"] or 0 for pool in pools))
    others = _others(incident, use, own)
    exact = incident.device_use
    snapshot = _snapshot(tables, one, incident)
    free = exact[1] - exact[0] if exact is not None else None
    if free is None and snapshot is not None and snapshot.ts == incident.first.ts and snapshot.device_free:
        free = snapshot.device_free  # an imported snapshot's word of the moment itself
    facts = Facts(
        subject=tables.tracked.subjects.of(one.process),
        use=use,
        pools=pools,
        alive=alive,
        leaks=tables.earlier,
        sources=tables.sources,
        others=others,
        others_at_first=_others_at_first(tables.usage.first(incident.ring, device)),
        device_free=free,
        own=own,
        snapshot=snapshot,
    )
    return Scene(alive, _owners(tables, one, incident, lines), pools, use, others, cause_of(incident, facts), free)


def _snapshot(tables: Tables, one: Failed, incident: Incident) -> PoolSnapshot | None:
    """What the pool of the device was like at the failure, where somebody looked."""
    near = [
        snapshot
        for snapshot in tables.tracked.snapshots.get(one.process, ())
        if (snapshot.device_type, snapshot.device) == (incident.device_type, incident.device)
        and abs(snapshot.ts - incident.first.ts) < _AT_FAILURE_NS
    ]
    return min(near, key=lambda snapshot: abs(snapshot.ts - incident.first.ts), default=None)


def failure_with_stack(incident: Incident, stack: StackOf) -> Failure:
    """The first with a Python stack, else with a native one, else the first."""
    for of in ("stack_py", "stack_c"):
        for failure in incident.failures:
            if stack(getattr(failure, of)):
                return failure
    return incident.first


def _pools(incident: Incident) -> Rows:
    """What each framework's pool had on the device, and what of it was free."""
    live = incident.alive
    rows = []
    for pool in np.unique(live["pool"][~np.isin(live["pool"], DRIVER_POOLS)]).tolist():
        used = int(live["size"][live["pool"] == pool].sum())
        space = next((space for space in incident.spaces if space.pool == pool), None)
        reserved = incident.pool_totals.get(pool, space.reserved if space else None)
        rows.append(
            {
                "pool": pool_name(pool),
                "used": used,
                "reserved": reserved,
                "free": max(reserved - used, 0) if reserved is not None else None,
                "largest_free": space.largest_free if space and space.segments else None,
            }
        )
    return tuple(rows)


def _use(incident: Incident, sampled: DeviceUse) -> DeviceUse:
    """What a driver said at the failure itself comes before a sample."""
    for failure in incident.failures:
        if failure.pool in DRIVER_POOLS and failure.total > 0:
            return DeviceUse(failure.used if failure.used >= 0 else sampled.used, failure.total, sampled.process_used)
    return sampled


def _others(incident: Incident, use: DeviceUse, own: int) -> int | None:
    """Bytes of the device that are not this process's; of a sample what were not its own when it was taken."""
    if use.used is None or incident.device_type == DeviceType.CPU:
        return None
    is_sampled = not any(one.pool in DRIVER_POOLS and one.used >= 0 for one in incident.failures)
    return max(use.used - (use.process_used if is_sampled and use.process_used is not None else own), 0)


def _others_at_first(first: DeviceUse) -> int | None:
    if first.used is None or first.process_used is None:
        return None
    return max(first.used - first.process_used, 0)


def _owners(tables: Tables, one: Failed, incident: Incident, most: int) -> Rows:
    """Largest first; without what nobody has labelled beyond its pool."""
    owners = tables.tracked.owners.get(one.process)
    if owners is None or not incident.owners:
        return ()
    texts = owner_texts(owners.owners, tables.text)
    named = sorted((-size, texts.get(owner, "")) for owner, size in incident.owners.items() if size)
    return tuple({"owner": text, "bytes": -size} for size, text in named if text)[:most]
