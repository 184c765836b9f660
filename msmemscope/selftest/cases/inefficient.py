"""What of the peak nobody needed: every pattern with its line and its bytes, and what only looks like one."""

from __future__ import annotations

from collections.abc import Iterator

from msmemscope.selftest.case import Check, Expected, all_of, clean, fault, note
from msmemscope.selftest.loops import place
from msmemscope.selftest.play import Played
from msmemscope.selftest.script import MIB, Block, Process, Script
from msmemscope.vocabulary import Kind, SystemEvent

HERE = place("model.py:88 forward")
OTHER = place("model.py:90 forward")
PEAK = place("model.py:99 loss")
SIZE, LARGE = 64 * MIB, 256 * MIB
MANY = 3100  # operators: longer than what is idle


def asked(job: Script, ranks: int = 1) -> list[Process]:
    job.config["analysis"] = ("inefficient",)
    return list(job.ranks(ranks)) if ranks > 1 else [job.rank()]


def use(rank: Process, *blocks: Block, write: bool = False) -> None:
    """An operator that touches blocks."""
    with rank.op("aten::add"):
        for block in blocks:
            rank.access(block, write=write)


def make(rank: Process, size: int, at: object, *given: Block) -> Block:
    """An operator that makes a block; with `given` it computes it, without it is empty."""
    with rank.op("aten::mul" if given else "aten::empty"):
        for block in given:
            rank.access(block)
        made = rank.alloc(size, at)  # type: ignore[arg-type]
        if given:
            rank.access(made, write=True)
    return made


def peak(rank: Process, *needed: Block) -> None:
    """The moment at which most is alive, in an operator that needs some blocks."""
    large = make(rank, LARGE, PEAK, *needed)
    use(rank, large)
    rank.free(large)


def idle(rank: Process, operators: int) -> None:
    """Operators that touch nothing."""
    for _ in range(operators):
        with rank.op("aten::view"):
            pass


def floor(bytes_: int, unneeded: int) -> Check:
    """How low each rank's pool could be."""

    def check(made: Played) -> Iterator[str]:
        peaks = made.stored.summary.figures["inefficient"]["peaks"]
        for name, pools in peaks.items():
            (figures,) = pools.values()
            if (figures["floor_bytes"], figures["unneeded_bytes"]) != (bytes_, unneeded):
                yield f"{name}: {figures} instead of a floor of {bytes_} and {unneeded} in vain"

    return check


def ends(clause: str) -> Check:
    """What the last line says of it."""

    def check(made: Played) -> Iterator[str]:
        (judged,) = [one for one in made.stored.judged if one.analyzer.name == "inefficient"]
        if (said := judged.analyzer.verdict(judged)) != clause:
            yield f"the last line says {said!r} instead of {clause!r}"

    return check


def told(
    pattern: str, ranks: tuple[int, ...] = (0,), size: int = SIZE, at: str = "model.py:88", **facts: object
) -> Expected:
    return Expected(
        "inefficient",
        ranks=ranks,
        place=at,
        bytes=size * len(ranks),
        saving=0 if pattern == "redundant_allocation" else size * len(ranks),
        evidence={"pattern": pattern},
        **facts,  # type: ignore[arg-type]
    )


@fault(
    "inefficient",
    told("early_allocation", (0, 1, 2, 3), says=("allocates 42 operators before the first use",)),
    check=all_of(floor(LARGE + SIZE, SIZE), ends("256 MiB were not needed at the peak, most of it from model.py:88")),
)
def allocated_long_before_its_use(job: Script) -> None:
    for rank in asked(job, 4):
        kept = make(rank, SIZE, OTHER)
        use(rank, kept, write=True)
        early = make(rank, SIZE, HERE)
        peak(rank, kept)
        idle(rank, 38)
        use(rank, kept)
        use(rank, early)
        rank.free(early)
        rank.free(kept)


@fault("inefficient", told("late_deallocation"), check=floor(LARGE, SIZE))
def freed_long_after_its_use(job: Script) -> None:
    (rank,) = asked(job)
    late = make(rank, SIZE, HERE)
    use(rank, late, write=True)
    use(rank, late)
    peak(rank)
    rank.free(late)


SMALLER = 24 * MIB


def another_moment(rank: Process) -> None:
    """An operator that touches more than is needed at the peak."""
    large = make(rank, LARGE, OTHER)
    more = make(rank, SIZE, OTHER)
    use(rank, large, more, write=True)
    use(rank, large, more)
    rank.free(large)
    rank.free(more)


@fault(
    "inefficient",
    Expected(
        "inefficient", ranks=(0,), place="model.py:88", bytes=SIZE, saving=SMALLER,
        evidence={"pattern": "late_deallocation"}, says=("At most 24 MiB can be saved by it",),
    ),
    Expected(
        "inefficient", ranks=(0,), place="model.py:91", bytes=SMALLER, saving=0,
        evidence={"pattern": "late_deallocation"},
    ),
    check=floor(LARGE + SIZE, SIZE + SMALLER),
)  # fmt: skip
def a_peak_that_another_moment_holds_up(job: Script) -> None:
    """Both are late at the peak, but no order gets below what one operator touches earlier: the largest has it all."""
    (rank,) = asked(job)
    another_moment(rank)
    late = make(rank, SIZE, HERE)
    use(rank, late, write=True)
    use(rank, late)
    little = make(rank, SMALLER, place("model.py:91 forward"))
    use(rank, little, write=True)
    use(rank, little)
    peak(rank)
    rank.free(late)
    rank.free(little)


@fault("inefficient", told("temporary_idleness"), check=floor(LARGE, SIZE))
def idle_over_the_peak(job: Script) -> None:
    (rank,) = asked(job)
    block = make(rank, SIZE, HERE)
    use(rank, block)
    idle(rank, MANY)
    peak(rank)
    use(rank, block)
    rank.free(block)


def on_stream(rank: Process, stream: int, *blocks: Block, write: bool = False) -> None:
    """An operator whose kernel runs on a stream."""
    with rank.op("aten::add"):
        for block in blocks:
            rank.access(block, write=write)
        rank.launch("Add", stream=stream)


@fault("inefficient", told("temporary_idleness"), check=floor(LARGE + SMALLER, SIZE))
def idle_while_another_stream_works(job: Script) -> None:
    """The order is the host's, over all streams: what one of them waits to use is not needed meanwhile."""
    (rank,) = asked(job)
    block, other = make(rank, SIZE, HERE), make(rank, SMALLER, OTHER)
    on_stream(rank, 1, block, write=True)
    on_stream(rank, 2, other, write=True)
    for _ in range(MANY):
        on_stream(rank, 2, other)
    peak(rank, other)
    on_stream(rank, 1, block)
    on_stream(rank, 2, other)
    rank.free(block)
    rank.free(other)


@clean("inefficient", check=floor(LARGE + 2 * SIZE, 0))
def two_streams_that_take_turns(job: Script) -> None:
    (rank,) = asked(job)
    blocks = {stream: make(rank, SIZE, HERE) for stream in (1, 2)}
    for stream, block in blocks.items():
        on_stream(rank, stream, block, write=True)
    for turn in range(MANY):
        on_stream(rank, 1 + turn % 2, blocks[1 + turn % 2])
    peak(rank, *blocks.values())
    for stream, block in blocks.items():
        on_stream(rank, stream, block)
        rank.free(block)


@fault("inefficient", told("temporary_idleness"), check=floor(LARGE, SIZE))
def idle_until_the_end_and_never_freed(job: Script) -> None:
    (rank,) = asked(job)
    block = make(rank, SIZE, HERE)
    use(rank, block)
    peak(rank)
    idle(rank, MANY)


@fault("inefficient", told("unused_allocation"), check=floor(LARGE, SIZE))
def never_used(job: Script) -> None:
    (rank,) = asked(job)
    block = make(rank, SIZE, HERE)
    peak(rank)
    rank.free(block)


@fault("inefficient", told("unused_allocation"))
def never_used_in_either_life(job: Script) -> None:
    """A rank that was started again is told as it is now: what its first life held in vain is no part of it."""
    (first,) = asked(job)
    for rank in (first, job.process(rank=0, world_size=1, attempt=1, now=first.now + 10**9)):
        block = make(rank, SIZE, HERE)
        peak(rank)
        rank.free(block)
    first.ended_by = 9


@fault("inefficient", told("dead_write"), check=floor(LARGE + SIZE, SIZE))
def a_result_that_nobody_reads(job: Script) -> None:
    (rank,) = asked(job)
    given = make(rank, SIZE, OTHER)
    use(rank, given, write=True)
    result = make(rank, SIZE, HERE, given)
    peak(rank, given)
    rank.free(result)
    rank.free(given)


@fault(
    "inefficient",
    told("late_deallocation"),
    told("redundant_allocation", at="model.py:90", says=("of model.py:88",)),
    check=all_of(floor(LARGE + SIZE, SIZE), ends("64 MiB were not needed at the peak, most of it from model.py:88")),
)
def a_second_block_where_the_first_was_dead(job: Script) -> None:
    two_of_which_one_is_dead(job)


@fault(
    "inefficient",
    told("redundant_allocation", at="model.py:90", says=("of model.py:88",)),
    check=ends("64 MiB at the peak are redundant, at model.py:90"),
)
def redundant_blocks_alone(job: Script) -> None:
    """The one that was dead is not asked for."""
    job.options["inefficient"] = {"inefficient_type": "redundant_allocation"}
    two_of_which_one_is_dead(job)


def two_of_which_one_is_dead(job: Script) -> None:
    (rank,) = asked(job)
    first = make(rank, SIZE, HERE)
    use(rank, first, write=True)
    use(rank, first)
    second = make(rank, SIZE, OTHER)
    use(rank, second, write=True)
    peak(rank, second)
    use(rank, second)
    rank.free(first)
    rank.free(second)


@clean("inefficient", check=all_of(floor(LARGE + 2 * SIZE, 0), ends("")))
def activations_that_wait_for_the_backward_pass(job: Script) -> None:
    """Computed, and not touched for a while: nobody could make them later."""
    (rank,) = asked(job)
    weight = make(rank, SIZE, OTHER)
    use(rank, weight, write=True)
    activation = make(rank, SIZE, HERE, weight)
    peak(rank, weight)
    idle(rank, 100)
    use(rank, activation, weight)
    rank.free(activation)
    rank.free(weight)


@clean("inefficient")
def workspaces_that_an_operator_keeps(job: Script) -> None:
    """Of a library: allocated within an operator that computes, and never told as a tensor."""
    (rank,) = asked(job)
    given = make(rank, SIZE, OTHER)
    use(rank, given, write=True)
    with rank.op("aten::mm"):
        rank.access(given)
        workspace = rank.alloc(SIZE, HERE)
    peak(rank, given)
    use(rank, given)
    rank.free(workspace)
    rank.free(given)


@clean("inefficient", check=floor(LARGE, 8 * MIB))
def a_small_block_in_vain(job: Script) -> None:
    (rank,) = asked(job)
    block = make(rank, 8 * MIB, HERE)
    peak(rank)
    rank.free(block)


@clean("inefficient", check=floor(LARGE + SIZE, 0))
def weights_that_the_optimizer_writes_last(job: Script) -> None:
    (rank,) = asked(job)
    weight = make(rank, SIZE, OTHER)
    use(rank, weight, write=True)
    for _ in range(5):
        peak(rank, weight)
        use(rank, weight)
        use(rank, weight, write=True)
        rank.step()
    rank.free(weight)


def peak_of(bytes_: int, floor: int) -> Check:
    """What the rows of peak say of PTA."""

    def check(made: Played) -> Iterator[str]:
        rows = [row.cells for one in made.stored.summary.findings for row in one.rows if row.file == "peak"]
        names = ("pool_bytes", "floor_bytes", "open_bytes")
        said = {tuple(row[name] for name in names) for row in rows if row["pool"] == "PTA"}
        if said != {(bytes_, floor, bytes_ - floor)}:
            yield f"peak says {said} instead of {(bytes_, floor, bytes_ - floor)}"

    return check


@fault(
    "inefficient",
    told("late_deallocation"),
    note("peak", ranks=(0,), bytes=LARGE + SIZE, says=("it cannot fall below 256 MiB",)),
    check=peak_of(LARGE + SIZE, LARGE),
)
def the_floor_stands_beside_the_peak(job: Script) -> None:
    (rank,) = asked(job)
    job.config["analysis"] = ("inefficient", "peak")
    late = make(rank, SIZE, HERE)
    use(rank, late, write=True)
    use(rank, late)
    peak(rank)
    rank.free(late)


@clean("inefficient")
def blocks_from_before_a_pause_of_the_recording(job: Script) -> None:
    """Nobody knows who used it while nothing was recorded."""
    (rank,) = asked(job)
    block = make(rank, SIZE, HERE)
    use(rank, block, write=True)
    peak(rank)
    rank.event(Kind.SYSTEM, aux=SystemEvent.STOP_TRACE)
    rank.event(Kind.SYSTEM, aux=SystemEvent.START_TRACE)
    rank.free(block)


LEAKING = 16  # steps


def keep_what_nobody_reads(rank: Process) -> None:
    """Each step 4 MiB are written and kept for good, at the peak all of them."""
    for _ in range(LEAKING):
        use(rank, make(rank, 4 * MIB, HERE), write=True)
        peak(rank)
        rank.step()
    idle(rank, MANY)


LEAKED = Expected(
    "leak",
    ranks=(0, 1),
    place="model.py:88",
    bytes=2 * LEAKING * 4 * MIB,
    per_step=4 * MIB,
    saving=2 * LEAKING * 4 * MIB,
)
LEAK_THAT_NOBODY_READS = note(
    "inefficient",
    ranks=(0, 1),
    place="model.py:88",
    bytes=2 * LEAKING * 4 * MIB,
    saving=0,
    says=("nobody reads what is written to the memory of model.py:88; the blocks are the leak at model.py:88.",),
    evidence={"pattern": "dead_write", "leak": "model.py:88"},
)


@fault("inefficient", LEAKED, LEAK_THAT_NOBODY_READS)
def a_leak_that_nobody_reads_is_no_second_mistake(job: Script) -> None:
    ranks = asked(job, 2)
    job.config["analysis"] = ("leaks", "inefficient")
    for rank in ranks:
        keep_what_nobody_reads(rank)


@fault("inefficient", LEAKED, LEAK_THAT_NOBODY_READS, told("late_deallocation", at="model.py:90"))
def a_leak_beside_what_is_freed_late(job: Script) -> None:
    ranks = asked(job, 2)
    job.config["analysis"] = ("leaks", "inefficient")
    for rank in ranks:
        if rank.rank == 0:
            late = make(rank, SIZE, OTHER)
            use(rank, late, write=True)
            use(rank, late)
        keep_what_nobody_reads(rank)
        if rank.rank == 0:
            rank.free(late)


@fault(
    "inefficient",
    Expected("leak", ranks=(0,), bytes=LEAKING * 4 * MIB - 4 * MIB, per_step=4 * MIB, within=0.1),
    told("late_deallocation", at="an unknown line", says=("is freed 3,164 operators after its last use.",)),
    told("dead_write", at="an unknown line"),
)
def what_is_freed_late_beside_a_leak_without_call_stacks(job: Script) -> None:
    """Both are of no line; that is no reason to take one for the other."""
    (rank,) = asked(job)
    job.config["analysis"] = ("leaks", "inefficient")
    late = make(rank, SIZE, "")
    use(rank, late, write=True)
    use(rank, late)
    for _ in range(LEAKING):
        use(rank, make(rank, 4 * MIB, ""), write=True)
        peak(rank)
        rank.step()
    idle(rank, MANY)
    rank.free(late)


@fault(
    "inefficient",
    LEAKED,
    LEAK_THAT_NOBODY_READS,
    note(
        "inefficient",
        ranks=(0, 1),
        place="model.py:88",
        bytes=2 * LEAKING // 2 * 4 * MIB,  # every other one could have been the one before
        saving=0,
        says=("of model.py:88, is not used again; the other blocks are the leak at model.py:88.",),
        evidence={"pattern": "redundant_allocation", "leak": "model.py:88"},
    ),
)
def leaked_blocks_of_which_one_could_have_been_another(job: Script) -> None:
    ranks = asked(job, 2)
    job.config["analysis"] = ("leaks", "inefficient")
    for rank in ranks:
        kept = []
        for _ in range(LEAKING):
            kept.append(make(rank, 4 * MIB, HERE))
            use(rank, kept[-1], write=True)
            peak(rank)
            rank.step()
        for block in kept:  # the program ends
            rank.free(block)
