"""What a check of `msmemscope doctor` yields: one line of the report."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Line:
    """`fatal`: with this missing nothing can be recorded."""

    state: Literal["ok", "warn", "missing"]
    text: str
    advice: str = ""
    fatal: bool = False
