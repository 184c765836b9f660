"""When memory is near its limit: at 95 % of it, until it is below 90 % again.

The agent says so at once when it happens, and the analysis finds it again in the samples: both ask here.
"""

from __future__ import annotations

NEAR, FAR = 0.95, 0.90


def is_near(was_near: bool, used: int, limit: int) -> bool:
    """Bytes; limit: 0 for none."""
    return limit > 0 and used >= (FAR if was_near else NEAR) * limit
