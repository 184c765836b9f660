"""Ranks that say where they stand: experts that are hot, stages of a pipeline; and what a rank holds beside tensors."""

from __future__ import annotations

from msmemscope.selftest.case import Expected, clean, fault, note
from msmemscope.selftest.loops import place, train
from msmemscope.selftest.script import MIB, Process, Script

STEPS = 14
EXPERTS = place("moe.py:61 dispatch", "train.py:85")


def stands(rank: Process, **sizes: tuple[int, int]) -> None:
    rank.meta("parallel", ",".join(f"{name}={at}/{size}" for name, (at, size) in sizes.items()))


def experts(rank: Process, size: int, *, at: str = "moe.py:44 experts", blocks: int = 2) -> None:
    """In each iteration what the experts of this rank make of their tokens."""

    def each(rank: Process, _: int) -> None:
        made = [rank.alloc(size // blocks, place(at, "train.py:85")) for _ in range(blocks)]
        for one in made:
            rank.free(one)

    train(rank, each, steps=STEPS, activations=2 * MIB)


HOT = "holds 2.1x of its peers' memory at moe.py:44, in as many blocks, because it gets more tokens"


def hot(ranks: tuple[int, ...], coordinate: str, who: str) -> Expected:
    return Expected(
        "uses_more",
        ranks=ranks,
        place="moe.py:44",
        bytes=len(ranks) * 110 * MIB,
        says=(f"{who} {HOT}",),
        evidence={"coordinate": coordinate, "load.gets_more": "tokens", "load.ratio": 2.1},
    )


@fault("peers", hot((5,), "ep=5", "Expert parallel rank 5"))
def a_hot_expert(job: Script) -> None:
    for one in job.ranks(8):
        stands(one, ep=(one.rank, 8))
        experts(one, (210 if one.rank == 5 else 100) * MIB)


@fault("peers", hot((5,), "", "Expert parallel rank 5"))
def a_hot_expert_where_the_data_is_shared_out_alike(job: Script) -> None:
    """As with Megatron: a rank's place among experts is its place among the replicas, too."""
    for one in job.ranks(8):
        stands(one, dp=(one.rank, 8), ep=(one.rank, 8))
        experts(one, (210 if one.rank == 5 else 100) * MIB)


@fault("peers", hot((3, 7), "ep=3", "Expert parallel rank 3 (ranks 3,7)"))
def hot_experts(job: Script) -> None:
    for one in job.ranks(8):
        stands(one, ep=(one.rank % 4, 4), dp=(one.rank // 4, 2))
        experts(one, (210 if one.rank % 4 == 3 else 100) * MIB)


@clean("peers")
def experts_that_get_as_many_tokens(job: Script) -> None:
    for one in job.ranks(8):
        stands(one, ep=(one.rank, 8))
        experts(one, (100 + one.rank % 3) * MIB)


@fault(
    "peers",
    Expected(
        "uses_more",
        ranks=(5,),
        place="moe.py:44",
        bytes=100 * MIB,
        evidence={"coordinate": "ep=5", "load": None},
        says=("it alone of its peers has ep=5",),
    ),
)
def more_blocks_of_one_expert(job: Script) -> None:
    """Of as many tokens it keeps twice as many blocks: not because it gets more of them."""
    for one in job.ranks(8):
        stands(one, ep=(one.rank, 8))
        experts(one, (200 if one.rank == 5 else 100) * MIB, blocks=4 if one.rank == 5 else 2)


@fault(
    "peers",
    Expected("uses_more", ranks=(3, 7), place="moe.py:61", bytes=2 * 200 * MIB, evidence={"load": None}),
)
def larger_experts(job: Script) -> None:
    """Weights, made once: larger on some ranks, whatever tokens they get."""

    def each(rank: Process, n: int) -> None:
        if n == 2:
            rank.alloc((300 if rank.rank % 4 == 3 else 100) * MIB, EXPERTS)

    for one in job.ranks(8):
        stands(one, ep=(one.rank % 4, 4), dp=(one.rank // 4, 2))
        train(one, each, steps=STEPS)


@fault(
    "peers",
    Expected(
        "uses_more",
        ranks=(6,),
        place="model.py:41",
        bytes=80 * MIB,
        says=("Rank 6 holds 1.8x of its peers' memory at model.py:41, in as many blocks, because it gets more data",),
        evidence={"load.gets_more": "data"},
    ),
)
def a_rank_with_a_larger_batch(job: Script) -> None:
    for one in job.ranks(8):
        experts(one, (180 if one.rank == 6 else 100) * MIB, at="model.py:41 attention")


@fault("peers", Expected("uses_more", ranks=(6,), place="save.py:88", bytes=100 * MIB, evidence={"peers": "4-5,7"}))
def a_stage_that_the_framework_told(job: Script) -> None:
    """The stages need so different amounts that rank 6 would be lost among them."""

    def each(rank: Process, n: int) -> None:
        if n == 2:
            rank.alloc((900 if rank.rank < 4 else 100) * MIB, place("model.py:70 embed", "train.py:85"))
        if n == 3 and rank.rank == 6:
            rank.alloc(100 * MIB, place("save.py:88 save", "train.py:70"))

    for one in job.ranks(8):
        stands(one, tp=(one.rank % 4, 4), pp=(one.rank // 4, 2))
        train(one, each, steps=STEPS)


def pipeline(rank: Process, stage: int, stages: int, extra: int) -> None:
    """1F1B: as many micro-batches of 40 MiB as stages from here to the last."""

    def each(rank: Process, n: int) -> None:
        if n == 0 and extra:
            rank.alloc(extra, place("model.py:90 head", "train.py:80"))
        batches = [rank.alloc(40 * MIB, place("model.py:33 forward", "train.py:85")) for _ in range(stages - stage)]
        for one in batches:
            rank.free(one)

    train(rank, each, steps=STEPS, activations=2 * MIB)


@clean("peers")
def stages_as_their_layers_predict(job: Script) -> None:
    for one in job.ranks(12):
        stands(one, tp=(one.rank % 3, 3), pp=(one.rank // 3, 4))
        pipeline(one, one.rank // 3, 4, 0)


@clean("peers", note("stages_differ", ranks=(9, 10, 11), bytes=300 * MIB, says=("stage 3",)))
def a_last_stage_with_the_head(job: Script) -> None:
    for one in job.ranks(12):
        stands(one, tp=(one.rank % 3, 3), pp=(one.rank // 3, 4))
        pipeline(one, one.rank // 3, 4, 300 * MIB if one.rank >= 9 else 0)


def resident(job: Script, who: int, extra: int, *, mapped: int = 0, freed: int = 0, swing: int = 0) -> None:
    """mapped: of extra, what are pages of mapped files. freed: of tensors on the host, in each step. swing: from one of
    four steps to the next, and of the last steps most ranks are looked at in one alone."""

    def sample(rank: Process, more: int) -> None:
        (has, of_files) = (extra, mapped) if rank.rank == who else (0, 0)
        parts = {"shared": 0, "mapped": (200 << 20) + of_files}
        rank.sample("cpu", used=8 << 30, total=64 << 30, rss=(1 << 30) + more + has, **parts)

    for one in job.ranks(4):
        sample(one, 0)

        def each(rank: Process, n: int) -> None:
            if freed:
                rank.free(rank.on_host(freed, place("train.py:20")))
            if not swing or n < STEPS - 4 or n % 4 == 0 or rank.rank == who:
                sample(rank, n % 3 * MIB + n % 4 * swing)
            rank.wait(0.1)

        train(one, each, steps=STEPS)


@fault(
    "peers",
    Expected("uses_more", ranks=(2,), bytes=500 * MIB, device="cpu", evidence={"figure": "rss"}, says=("no tensor",)),
)
def host_memory_that_is_no_tensor(job: Script) -> None:
    resident(job, 2, 500 * MIB)


@clean("peers")
def one_rank_maps_the_weights(job: Script) -> None:
    resident(job, 2, 500 * MIB, mapped=500 * MIB)


@clean("peers")
def a_little_more_resident(job: Script) -> None:
    resident(job, 2, 60 * MIB)


@clean("peers")
def a_heap_that_keeps_what_steps_free(job: Script) -> None:
    resident(job, 2, 300 * MIB, freed=310 * MIB)


@fault("peers", Expected("uses_more", ranks=(2,), bytes=500 * MIB, device="cpu", says=("no tensor",)))
def more_than_a_heap_keeps_of_what_steps_free(job: Script) -> None:
    resident(job, 2, 500 * MIB, freed=310 * MIB)


@clean("peers")
def few_looks_at_the_last_steps(job: Script) -> None:
    resident(job, 2, 0, swing=200 * MIB)
