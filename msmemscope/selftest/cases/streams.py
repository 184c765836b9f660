"""Streams of a card: a block is judged by what its own stream does, and nothing is told that only some order of the
streams would make true."""

from __future__ import annotations

from collections.abc import Iterator

from msmemscope.selftest.case import Check, Expected, clean, fault
from msmemscope.selftest.cases.inefficient import HERE, LARGE, MANY, OTHER, SIZE, asked, idle, make, peak, use
from msmemscope.selftest.play import Played
from msmemscope.selftest.script import Block, Process, Script


def told(pattern: str, stream: int, *, at: str = "model.py:88", says: tuple[str, ...] = ()) -> Expected:
    return Expected(
        "inefficient",
        ranks=(0,),
        place=at,
        bytes=SIZE,
        saving=SIZE,
        evidence={"pattern": pattern, "stream": stream},
        says=(f"at the peak of stream {stream} of npu:0", *says),
    )


def pools(**expected: tuple[int, int, int]) -> Check:
    """Of each stream, or of a pool that has but one: bytes of its peak, of these in vain, and undecided."""

    def check(made: Played) -> Iterator[str]:
        (peaks,) = made.stored.summary.figures["inefficient"]["peaks"].values()
        names = ("peak_bytes", "unneeded_bytes", "undecided_bytes")
        said = {name: tuple(one[column] for column in names) for name, one in peaks.items()}
        wanted = {name.replace("whole", "").replace("_", " "): one for name, one in expected.items()}
        if said != {f"npu:0 PTA {name}".rstrip(): one for name, one in wanted.items()}:
            yield f"{said} instead of {expected}"

    return check


IN_VAIN = pools(stream_1=(LARGE + SIZE, SIZE, 0), stream_2=(LARGE + SIZE, 0, 0))
UNDECIDED = pools(stream_1=(LARGE + SIZE, 0, SIZE), stream_2=(LARGE + SIZE, 0, 0))


def other_stream_works(rank: Process) -> None:
    """Stream 2 has a peak of its own, of blocks that it needs."""
    with rank.stream(2):
        kept = make(rank, SIZE, OTHER)
        use(rank, kept, write=True)
        peak(rank, kept)
        use(rank, kept)
        rank.free(kept)


@fault("inefficient", told("late_deallocation", 1), check=IN_VAIN)
def late_while_two_streams_work(job: Script) -> None:
    (rank,) = asked(job)
    with rank.stream(1):
        late = make(rank, SIZE, HERE)
        use(rank, late, write=True)
        use(rank, late)
        other_stream_works(rank)
        peak(rank)
        rank.free(late)


def read_on(rank: Process, stream: int, block: Block, *, write: bool = False) -> None:
    with rank.stream(stream):
        use(rank, block, write=write)


@clean("inefficient", check=UNDECIDED)
def used_last_by_a_stream_that_nobody_waits_for(job: Script) -> None:
    """When stream 2 has read it is not recorded: maybe behind the peak."""
    (rank,) = asked(job)
    other_stream_works(rank)
    with rank.stream(1):
        block = make(rank, SIZE, HERE)
        use(rank, block, write=True)
        read_on(rank, 2, block)
        use(rank, block)  # a read does not wait for a read
        peak(rank)
        rank.free(block)


@fault("inefficient", told("late_deallocation", 1), check=IN_VAIN)
def written_by_its_own_stream_behind_all_others(job: Script) -> None:
    """A write waits for whoever reads, or the program is wrong."""
    (rank,) = asked(job)
    other_stream_works(rank)
    with rank.stream(1):
        block = make(rank, SIZE, HERE)
        use(rank, block, write=True)
        read_on(rank, 2, block)
        use(rank, block, write=True)
        use(rank, block)
        peak(rank)
        rank.free(block)


@clean("inefficient", check=UNDECIDED)
def recorded_for_another_stream(job: Script) -> None:
    """record_stream: the pool keeps it behind its release until that stream is done."""
    (rank,) = asked(job)
    other_stream_works(rank)
    with rank.stream(1):
        block = make(rank, SIZE, HERE)
        use(rank, block, write=True)
        use(rank, block)
        rank.hand_over(block)
        peak(rank)
        rank.free(block)


@clean("inefficient", check=pools(stream_1=(LARGE + SIZE, 0, 0), stream_2=(LARGE + SIZE, 0, 0)))
def nothing_of_its_own_stream_lies_between(job: Script) -> None:
    """Thousands of operators of another stream may all run before, or behind."""
    (rank,) = asked(job)
    with rank.stream(1):
        block = make(rank, SIZE, HERE)
        use(rank, block, write=True)
        other_stream_works(rank)
        with rank.stream(2):
            idle(rank, MANY)
        peak(rank)
        use(rank, block)
        rank.free(block)


@fault("inefficient", told("temporary_idleness", 1), check=IN_VAIN)
def idle_until_another_stream_needs_it(job: Script) -> None:
    """What is launched on stream 2 runs no earlier than that."""
    (rank,) = asked(job)
    other_stream_works(rank)
    with rank.stream(1):
        block = make(rank, SIZE, HERE)
        use(rank, block, write=True)
        idle(rank, MANY)
        peak(rank)
        read_on(rank, 2, block)
        rank.free(block)


@fault(
    "inefficient",
    told("early_allocation", 1, says=("before the first use",)),
    check=IN_VAIN,
)
def early_for_another_stream(job: Script) -> None:
    (rank,) = asked(job)
    other_stream_works(rank)
    with rank.stream(1):
        block = make(rank, SIZE, HERE)
        peak(rank)
        read_on(rank, 2, block, write=True)
        use(rank, block)
        rank.free(block)


@fault("inefficient", told("late_deallocation", 1), check=IN_VAIN)
def the_dead_block_of_one_stream_is_none_for_another(job: Script) -> None:
    """Stream 2 could not have had it: its block is not redundant."""
    (rank,) = asked(job)
    with rank.stream(1):
        dead = make(rank, SIZE, HERE)
        use(rank, dead, write=True)
        use(rank, dead)
        other_stream_works(rank)  # allocates one of its size
        peak(rank)
        rank.free(dead)


@clean("inefficient", check=pools(whole=(LARGE + SIZE, 0, SIZE)))
def allocated_before_streams_were_told(job: Script) -> None:
    """Weights that were there before the observer: nobody knows for which stream. They make no peak of their own."""
    (rank,) = asked(job)
    weight = make(rank, SIZE, HERE)
    use(rank, weight, write=True)
    with rank.stream(1):
        use(rank, weight)
        peak(rank)
    rank.free(weight)
