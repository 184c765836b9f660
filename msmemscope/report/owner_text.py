"""Whose the blocks at one address were, as text: what `msmemscope owner` prints.

In: a run, an address, whose, and a step. Out: one paragraph for each block that held the address, oldest first.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from msmemscope.analysis.findings import device_name, format_bytes, pool_name
from msmemscope.analysis.live_lines import line_of
from msmemscope.analysis.merged_stack import merged
from msmemscope.analysis.owner_history import BlockHistory, find_histories
from msmemscope.analysis.owners import UNATTRIBUTED
from msmemscope.analysis.source_text import Sources
from msmemscope.analysis.subjects import find_subjects
from msmemscope.errors import InputError
from msmemscope.report.analysed import Progress
from msmemscope.report.console import check_there
from msmemscope.tables.run import Run
from msmemscope.text import plain


def owner_text(
    path: str | Path,
    address: int,
    *,
    rank: int | None = None,
    pid: int | None = None,
    step: int | None = None,
    progress: Progress | None = None,
) -> str:
    """The blocks that held the byte at `address`, in a rank, a process or, without either, in all of them: addresses
    are each process's own. step: only blocks that were alive in it, and whose they were at its end.

    RunError for a directory that is no run; InputError for an unknown rank or process, and where no block of theirs
    held the address, or none in that step.
    """
    run = Run(path)
    check_there(run, rank, pid)
    processes = {
        one.ring: one for one in run.processes if (rank is None or one.rank == rank) and (pid is None or one.pid == pid)
    }
    total = sum(one.events for one in processes.values())

    def tell(done: int) -> None:
        if progress is not None:
            progress("owners", done, total)

    found = find_histories(run, address, processes.keys(), progress=tell)
    blocks = [one for one in found.blocks if step is None or one.is_alive_in(step)]
    if not blocks:
        raise InputError(f"{run.path}: {_nowhere(address, step, found.blocks)}")
    names, sources = _names(run), Sources.of(run.processes)
    lines = [line for one in blocks for line in _paragraph(one, names[one.ring], run, step, sources)]
    if found.left_out_changes:
        lines.append(f"{found.left_out_changes} changes of owners are not known: there was no room for more")
    return "\n".join(map(plain, lines))


def _nowhere(address: int, step: int | None, blocks: tuple[BlockHistory, ...]) -> str:
    if not blocks:
        return (
            f"no recorded block held the address {address:#x}; addresses stand in blocks/ and in the per-device files"
        )
    lives = list(dict.fromkeys(_life(one) for one in blocks))
    more = f" and {len(lives) - 8} more times" if len(lives) > 8 else ""
    told = ", ".join(lives[:8])
    word = "step" if lives == [told] and " " not in told else "steps"
    return f"no block held the address {address:#x} in step {step}; blocks did in {word} {told}{more}"


def _life(block: BlockHistory) -> str:
    """ "3", "3 to 7", "3 to the end"."""
    last = "the end" if block.free_step is None else str(block.free_step)
    return last if last == str(block.malloc_step) else f"{block.malloc_step} to {last}"


def _names(run: Run) -> dict[int, str]:
    """By its ring what a process is called; workers as whom they work for."""
    subjects = find_subjects(run.processes, {})
    names = {}
    for number, process in enumerate(run.processes):
        name, pid = subjects.of(number).label, f"[pid {process.pid}]"
        names[process.ring] = name if name.endswith(pid) else f"{name} {pid}"
    return names


def _paragraph(block: BlockHistory, whose: str, run: Run, step: int | None, sources: Sources) -> Iterator[str]:
    lived = f"step {block.malloc_step} on, alive at the end"
    if block.free_step is not None:
        lived = f"step{'s' if block.free_step != block.malloc_step else ''} {_life(block)}"
    yield (
        f"{whose}, {device_name(block.device_type, block.device)}, {pool_name(block.pool, block.device_type)}: block "
        f"{block.allocation_id}, {block.size} bytes ({format_bytes(block.size)}) from {block.ptr:#018x}, {lived}"
    )
    frame = line_of(merged(run.stack(block.stack_py), run.stack(block.stack_c)))
    if frame is not None:
        at = sources.quoted(frame.text, frame.file, frame.line) if frame.kind == "python" else frame.text
        yield f"  allocated at {at}"
    if step is not None:
        yield f"  in step {step}: {block.owner_in(step) or UNATTRIBUTED}"
    for one in block.owners:
        yield f"  from step {one.step}: {one.owner or UNATTRIBUTED}"
