"""Which call stacks of a process make blocks of which a finding says that they leak: what another analysis says of such
blocks is no second mistake.

In: the findings of `leaks`, and a subject with a call stack. Out: the leak.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from msmemscope.analysis.findings import LEAK, LEAK_CANDIDATE, Finding

if TYPE_CHECKING:
    from msmemscope.analysis.subjects import Subject


class LeakedStacks:
    """Those of a run."""

    def __init__(self, findings: Iterable[Finding]) -> None:
        self._leaks = [
            (frozenset(int(stack, 16) for stack in one.evidence["stacks"]), one)
            for one in findings
            if one.kind in (LEAK, LEAK_CANDIDATE)
        ]

    def leak_of(self, subject: Subject, python: int, native: int) -> Finding | None:
        """The leak of that subject whose blocks this call stack makes, by the ids of its frames of Python, else of
        native code; None for none. Without a call stack (0) nobody knows which blocks are the leak's."""
        if not (stack := python or native):
            return None
        return next((leak for stacks, leak in self._leaks if stack in stacks and leak.concerns(subject)), None)
