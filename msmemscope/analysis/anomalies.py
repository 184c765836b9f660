"""What folds could not follow, or had no room for, summed over processes.

In: tables of anomalies, of one fold or of a job (blocks.py; kinds: native/kernel/anomalies.h). Out: sums by kind.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def anomalies_by_kind(table: Mapping[str, Any]) -> dict[str, dict[str, int]]:
    """Kind -> "count": how often, "bytes": of how many bytes it is known."""
    totals: dict[str, dict[str, int]] = {}
    for kind, count, size in zip(table["kind"], table["count"], table["bytes"], strict=True):
        entry = totals.setdefault(str(kind), {"count": 0, "bytes": 0})
        entry["count"] += int(count)
        entry["bytes"] += int(size)
    return totals


def anomaly_count(table: Mapping[str, Any], kind: str) -> int:
    """How often there was one of this kind."""
    return anomalies_by_kind(table).get(kind, {}).get("count", 0)
