"""What is said of memory that was there at the peak though nobody needed it then.

In: a finding with its figures and evidence, and what it is of each process. Out: its sentence.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from msmemscope.analysis.findings import Finding, at_the_start, format_bytes
from msmemscope.analysis.patterns import DEAD, EARLY, IDLE, LATE, REDUNDANT, UNUSED
from msmemscope.text import counted

if TYPE_CHECKING:
    from msmemscope.analysis.inefficient import Use
    from msmemscope.analysis.source_text import Sources

UNTOLD = -1
ADVICE = {
    EARLY: "Allocate it where it is first used.",
    LATE: "Drop the last reference (del, or leave the function) behind the last use.",
    IDLE: "Move it to the host meanwhile, or make it again when it is needed.",
    UNUSED: "Do not allocate it; what uses it without operators of torch (numpy, a kernel of your own) is not seen.",
    DEAD: "Do not compute it, or write into it first where it is needed; reads by others than torch are not seen.",
    REDUNDANT: "Write into the block that is not used again (out=, an in-place operator), or free that one first.",
}


def sentence_of(found: Finding, several: Sequence[Use], stream: int | None, sources: Sources) -> str:
    """several: what it is of each process. stream: torch's number of it, UNTOLD, or None where the pool has but one.
    sources: of the run."""
    pattern, count = found.evidence["pattern"], found.evidence["operators"]
    operators = counted(count, "operator")
    most = max(one.bytes + one.shared_bytes for one in several)
    size = format_bytes(most)
    if len(several) > 1:
        is_equal = all(one.bytes + one.shared_bytes == most for one in several)
        size = f"{size} each" if is_equal else f"up to {size} each"
    pool = found.device or "the pool"
    if stream is not None:
        pool = f"{pool} {stream_name(stream)}" if stream == UNTOLD else f"{stream_name(stream)} of {pool}"
    start = f"{at_the_start(found.who)}: {size} at the peak of {pool}"
    place = found.where(sources)
    leak = found.evidence["leak"]
    told = f"; the blocks are the leak at {leak}" if leak else ""
    if pattern == REDUNDANT:
        other = found.evidence["partner"]
        why = f"{place} allocates a block while one of its size, of {other}, is not used again"
        told = f"; the other blocks are the leak at {leak}" if leak else ""
        return f"{start} are redundant: {why}{told}."
    why = {
        EARLY: f"{place} allocates {operators} before the first use",
        LATE: f"what {place} allocates is freed {operators} after its last use",
        IDLE: f"what {place} allocates is not used for {operators}",
        UNUSED: f"no operator uses what {place} allocates",
        DEAD: f"nobody reads what is written to the memory of {place}",
    }[pattern]
    capped = ""
    if not leak and found.saving_bytes < sum(one.bytes for one in several):
        saving = max(one.saving for one in several)
        many = " each" if len(several) > 1 else ""
        capped = f" At most {format_bytes(saving)}{many} can be saved by it: no order falls below the floor."
    return f"{start} were not needed: {why}{told}.{capped}"


def stream_name(stream: int) -> str:
    """ "stream 3"; of blocks of which nobody told one, UNTOLD."""
    return "without a stream" if stream == UNTOLD else f"stream {stream}"
