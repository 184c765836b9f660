"""Tells the processes of this node which of their blocks leak, or grow, so that each can look up who holds them.

In: a verdict. Out: `leaking-<ring>` in the session directory for every process that made enough steps to be judged,
replaced whole; what is in it: collect/rank/lookup.py, which reads it when the process ends. Only addresses are told, of
some blocks of each site; a process in which nothing leaks or grows is told that, and need not look.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from msmemscope.analysis.findings import GROWTH
from msmemscope.analysis.steps import WARM_UP
from msmemscope.analysis.verdict.limits import LIMITS
from msmemscope.collect.session import LEAKING
from msmemscope.sampling import spread

if TYPE_CHECKING:
    from msmemscope.report.analysed import Analysis

ENOUGH_STEPS = WARM_UP + LIMITS.few_steps
_MOST_STACKS = 64
_ADDRESSES = 48  # of a call stack


class LeakingFiles:
    """Of one session directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._written: dict[int, str] = {}  # ring -> text

    def write(self, analysis: Analysis) -> None:
        """Brings the files up to date. A directory that is gone, or full, is no fault of the verdict."""
        for ring, text in self._texts(analysis).items():
            if self._written.get(ring) == text:
                continue
            path = self._directory / f"{LEAKING}{ring:016x}"
            temporary = path.with_name(path.name + "~")
            with suppress(OSError):
                file = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
                with open(file, "w", encoding="utf-8") as out:
                    out.write(text)
                os.replace(temporary, path)
                self._written[ring] = text

    @staticmethod
    def _texts(analysis: Analysis) -> dict[int, str]:
        tracked, blocks = analysis.tracked, analysis.leaked
        steps = {
            tracked.processes[number].ring: step
            for number, step in tracked.last_complete_step.items()
            if step >= ENOUGH_STEPS
        }
        found: dict[int, dict[str, list[int]]] = {ring: {} for ring in steps}
        if blocks:
            told = (*analysis.summary.leaks, *analysis.summary.small_leaks, *analysis.summary.of_kind(GROWTH))
            stacks = [stack for one in told for stack in one.evidence.get("stacks", ())]
            wanted = {int(stack, 16): stack for stack in stacks[:_MOST_STACKS]}
            ids = np.where(blocks["stack_py"] != 0, blocks["stack_py"], blocks["stack_c"])
            rows = np.flatnonzero(np.isin(ids, np.array(list(wanted), np.uint64)))
            for process, stack, address in zip(
                *(column[rows].tolist() for column in (blocks["process"], ids, blocks["ptr"])), strict=True
            ):
                ring = tracked.processes[process].ring
                found.setdefault(ring, {}).setdefault(wanted[stack], []).append(address)
        return {
            ring: json.dumps(
                {
                    "judged": _rounded(steps.get(ring, 0)),
                    "blocks": {stack: spread(addresses, _ADDRESSES) for stack, addresses in of_ring.items()},
                }
            )
            for ring, of_ring in found.items()
        }


def _rounded(step: int) -> int:
    """Down to four binary digits, so that the file of a process about which nothing is new stays as it is for long."""
    below = max(step.bit_length() - 4, 0)
    return step >> below << below
