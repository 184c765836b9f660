"""How an agent works; session.json may change each under "agent"."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any


@dataclass(frozen=True)
class Settings:
    batch_events: int = 65536  # a batch is cut at so many events ...
    interval_ms: int = 50  # ... or when its first is about so old
    window_bytes: int = 64 << 20  # ring bytes under way and not acknowledged, over all rings
    silence_s: float = 2.0  # no acknowledgement for so long: connect again, and spool rings that are half full
    spool_bytes: int = 4 << 30  # at most, and at most 80 % of what is free there
    idle_s: float = 0.5  # when nothing was recorded for a while, how long it sleeps at most before it looks again
    usage_s: float = 0.1  # between samples of memory use
    usage_renew_s: float = 10.0  # a figure that does not move is told again after so long
    look_for_owner_s: float = 1.0  # between looks whether the supervisor still lives
    give_up_s: float = 20.0  # at the end: nothing acknowledged for so long, and the rest is left where it is

    @classmethod
    def of(cls, session: Mapping[str, Any]) -> Settings:
        given = session.get("agent", {})
        return cls(**{item.name: given[item.name] for item in fields(cls) if item.name in given})
