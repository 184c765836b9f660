"""The leak analysis on simulated jobs whose leaks we planted, so line, ranks and bytes are known beforehand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from simulated_job import (
    KIB,
    MIB,
    MODEL,
    MODULE,
    SITE,
    STEP_STACK,
    TRAIN,
    Block,
    Frame,
    Job,
    Worker,
    at,
    forward,
    stack,
    train,
)

from msmemscope.analysis.findings import (
    GROWTH,
    LEAK,
    LEAK_CANDIDATE,
    LEVEL,
    LOST_RELEASES,
    SMALL_LEAK,
    Finding,
    fold_ranks,
    ranks_text,
)
from msmemscope.analysis.leak_words import _lies_in_a_container, worded
from msmemscope.analysis.leaks import LeakOptions, find_leaks
from msmemscope.analysis.source_text import Sources
from msmemscope.analysis.verdict.sites import SiteJudge
from msmemscope.vocabulary import DeviceType, Pool

Plant = Callable[[Worker, int], None]
PLANTED = 50  # the line in train.py that plants allocate at
SEEDS = range(3)
# Where the step ends (after the iteration, or in the optimizer) and whether main() returns before the last event.
SHAPES = [
    pytest.param(api, teardown, id=f"{'api' if api else 'hook'}-{'returned' if teardown else 'alive'}")
    for api in (True, False)
    for teardown in (True, False)
]


def everything(job: Job, **options: object) -> list[Finding]:
    return find_leaks(job.tracked(), job.stack, **options)  # type: ignore[arg-type]


def leaks(job: Job, **options: object) -> list[Finding]:
    """What is found, but that a level has been reached, or that a list of scalars is kept."""
    return [one for one in everything(job, **options) if one.kind not in (LEVEL, SMALL_LEAK)]


def keep(worker: Worker, size: int, *, line: int = PLANTED) -> Block:
    return worker.alloc(stack(at(line)), size)


# --- clean programs -------------------------------------------------------------------------------------------------


def momentum(worker: Worker, i: int) -> None:
    if i == 0:
        keep(worker, 4 * MIB)


def accumulation(worker: Worker, i: int) -> None:
    """Four micro-batches; the gradient of the first lives until the next step."""
    held = _state(worker, "accumulation")
    for block in held:
        worker.free(block)
    held[:] = [keep(worker, MIB) for _ in range(4)]


def ema_at_step_3(worker: Worker, i: int) -> None:
    if i == 3:
        for _ in range(8):
            keep(worker, MIB)


def cache_that_fills(worker: Worker, i: int) -> None:
    """One entry per input shape; there are ten shapes and they come in random order."""
    seen = _state(worker, "cache")
    shape = int(worker.job.rng.integers(0, 10)) if i >= 10 else i
    if shape not in seen:
        seen.append(shape)
        keep(worker, (shape + 1) * 64 * KIB)


def checkpoint_every_5(worker: Worker, i: int) -> None:
    """Copies of all parameters, dropped after the next step."""
    held = _state(worker, "checkpoint")
    while held:
        worker.free(held.pop())
    if i % 5 == 4:
        held.extend(keep(worker, MIB) for _ in range(4))


def varying_length(worker: Worker, i: int) -> None:
    """A buffer per step whose size follows the input's, alive at the end of the step."""
    held = _state(worker, "varying")
    while held:
        worker.free(held.pop())
    held.extend(
        keep(worker, int(worker.job.rng.integers(1, 64)) * 16 * KIB) for _ in range(worker.job.rng.integers(1, 4))
    )


def scheduler_state(worker: Worker, i: int) -> None:
    """A list of learning rates, eight bytes each; and losses as scalars."""
    keep(worker, 8)
    keep(worker, 4, line=51)


def evaluation_every_6(worker: Worker, i: int) -> None:
    """Outputs of the evaluation gather over the steps until the next one clears them."""
    held = _state(worker, "evaluation")
    if i % 6 == 5:
        while held:
            worker.free(held.pop())
    held.append(keep(worker, MIB))


def ddp_buckets(worker: Worker, i: int) -> None:
    """Made at the first step, made anew at the second, then kept."""
    held = _state(worker, "buckets")
    if i < 2:
        while held:
            worker.free(held.pop())
        held.extend(keep(worker, 4 * MIB) for _ in range(3))


def autocast(worker: Worker, i: int) -> None:
    """Half precision copies of the weights, remade at each step while the old ones still live."""
    held = _state(worker, "autocast")
    new = [keep(worker, MIB // 2) for _ in range(4)]
    while held:
        worker.free(held.pop())
    held.extend(new)


def replay_buffer(worker: Worker, i: int) -> None:
    """Holds twelve batches, then the oldest makes room."""
    held = _state(worker, "replay")
    held.append(keep(worker, MIB))
    if len(held) > 12:
        worker.free(held.pop(0))


def random_replacement(worker: Worker, i: int) -> None:
    """A full buffer in which a random entry is replaced: survivors of all ages, but no growth."""
    held = _state(worker, "random")
    while len(held) < 8:
        held.append(keep(worker, MIB))
    at_random = int(worker.job.rng.integers(0, 8))
    worker.free(held[at_random])
    held[at_random] = keep(worker, MIB)


def garbage_every_9(worker: Worker, i: int) -> None:
    """Reference cycles, collected when the collector comes by."""
    held = _state(worker, "garbage")
    held.append(keep(worker, 256 * KIB))
    if i % 9 == 8:
        while held:
            worker.free(held.pop())


def curriculum(worker: Worker, i: int) -> None:
    """Sequences get longer with every step; what is alive is always the latest step's."""
    held = _state(worker, "curriculum")
    while held:
        worker.free(held.pop())
    held.append(keep(worker, (16 + 8 * i) * KIB))


def concatenated(worker: Worker, i: int) -> None:
    """`history = torch.cat([history, x])`: one block, always a larger one. More than growth cannot be said."""
    held = _state(worker, "history")
    new = keep(worker, (i + 1) * 256 * KIB)
    while held:
        worker.free(held.pop())
    held.append(new)


def nothing(worker: Worker, i: int) -> None:
    """AdamW alone."""


CLEAN = [
    nothing, momentum, accumulation, ema_at_step_3, cache_that_fills, checkpoint_every_5, varying_length,
    scheduler_state, evaluation_every_6, ddp_buckets, autocast, replay_buffer, random_replacement, garbage_every_9,
    curriculum,
    concatenated,
]  # fmt: skip
GROWING = (curriculum, concatenated)


def _state(worker: Worker, name: str) -> list:
    """What a plant remembers from step to step; one list per worker object."""
    store = worker.__dict__.setdefault("plant_state", {})
    return store.setdefault(name, [])


@pytest.mark.parametrize(("api", "teardown"), SHAPES)
@pytest.mark.parametrize("plant", CLEAN, ids=lambda plant: plant.__name__)
def test_clean_loops_yield_nothing(plant: Plant, api: bool, teardown: bool):
    for seed in SEEDS:
        for steps in (24, 29):
            job = train(Job(seed), 2, steps, api=api, teardown=teardown, plant=plant)
            found = leaks(job)
            assert {one.line for one in found} == ({PLANTED} if plant in GROWING else set())
            assert all(one.kind == GROWTH for one in found)


# --- leaking programs -----------------------------------------------------------------------------------------------


def growing_list(worker: Worker, i: int) -> None:
    keep(worker, MIB)


def every_third_step(worker: Worker, i: int) -> None:
    if i % 3 == 0:
        keep(worker, MIB)


def every_fifth_step(worker: Worker, i: int) -> None:
    if i % 5 == 0:
        keep(worker, MIB)


def tiny_under_churn(worker: Worker, i: int) -> None:
    """4 KiB kept from the very line that also turns over 200 MiB, some of it alive at the end of the step."""
    held = _state(worker, "churn")
    while held:
        worker.free(held.pop())
    for _ in range(20):
        worker.free(keep(worker, 10 * MIB))
    keep(worker, 4 * KIB)
    held.append(keep(worker, 10 * MIB, line=51))


def after_step_10(worker: Worker, i: int) -> None:
    if i > 10:
        keep(worker, MIB)


def closure_cycle(worker: Worker, i: int) -> None:
    """Two blocks per step that only refer to each other."""
    keep(worker, 64 * KIB)
    keep(worker, 192 * KIB)


def backward_hook(worker: Worker, i: int) -> None:
    hook = (Frame(TRAIN, "save_gradient", PLANTED), Frame(SITE + "autograd/graph.py", "_engine_run_backward", 824))
    worker.alloc((*hook, at(23), Frame(TRAIN, "<module>", 900)), 512 * KIB)


def forward_hook(worker: Worker, i: int) -> None:
    hook = (Frame(TRAIN, "save_activation", PLANTED), Frame(MODULE, "inner", 1800), Frame(MODULE, "_call_impl", 1850))
    worker.alloc((*hook, Frame(MODEL, "forward", 41), Frame(MODULE, "_call_impl", 1780), at(20)), 512 * KIB)


def in_a_thread(worker: Worker, i: int) -> None:
    frames = (Frame(TRAIN, "prefetch", PLANTED), Frame("/usr/lib/python3.11/threading.py", "run", 982))
    worker.alloc(frames, 128 * KIB)


LEAKING = [
    (growing_list, MIB), (every_third_step, MIB / 3), (every_fifth_step, MIB / 5), (tiny_under_churn, 4 * KIB),
    (after_step_10, MIB), (closure_cycle, 256 * KIB), (backward_hook, 512 * KIB), (forward_hook, 512 * KIB),
    (in_a_thread, 128 * KIB),
]  # fmt: skip


@pytest.mark.parametrize(("api", "teardown"), SHAPES)
@pytest.mark.parametrize(("plant", "per_step"), LEAKING, ids=lambda value: getattr(value, "__name__", ""))
def test_planted_leaks_are_found_and_nothing_else(plant: Plant, per_step: float, api: bool, teardown: bool):
    for seed in SEEDS:
        # Every fifth step is seldom: ten times are not enough to tell it from blocks that live long.
        steps = 24 if per_step not in (MIB / 3, MIB / 5) else 60
        (found,) = leaks(train(Job(seed), 2, steps, api=api, teardown=teardown, plant=plant))
        assert (found.kind, found.file, found.line) == (LEAK, TRAIN, PLANTED)
        assert (found.ranks, found.scope) == ((0, 1), "uniform")
        assert found.bytes_per_step == per_step
        assert found.evidence["reason"]


def test_shape_keyed_cache_that_never_repeats():
    sizes = []

    def plant(worker: Worker, i: int) -> None:
        sizes.append((20 + (i * 7) % 24) * 16 * KIB)
        keep(worker, sizes[-1])

    (found,) = leaks(train(Job(), plant=plant))
    assert found.line == PLANTED
    assert found.bytes_per_step == pytest.approx(sum(sizes) / 24, rel=0.05)


def test_kept_loss_is_one_finding_at_the_line_of_the_loss():
    (found,) = leaks(train(Job(), 4, graph=True))
    assert (found.file, found.line, found.ranks, found.scope) == (TRAIN, 22, (0, 1, 2, 3), "uniform")
    # batch 4 KiB, four layers 1 MiB, statistics 2 KiB, log-probabilities 64 KiB, the scalar 4 bytes
    assert found.bytes_per_step == 4 * MIB + 70 * KIB + 4
    assert found.bytes == 4 * 24 * found.bytes_per_step
    assert {(part["file"], part["line"]) for part in found.evidence["absorbed"]} == {
        (TRAIN, 70), (MODEL, 40), (MODEL, 41), (MODEL, 42), (MODEL, 43)
    }  # fmt: skip
    assert "detach" in found.advice


def test_kept_loss_on_all_ranks_and_a_tensor_on_rank_2():
    def plant(worker: Worker, i: int) -> None:
        if worker.process.rank == 2:
            keep(worker, MIB)

    graph, tensor = leaks(train(Job(), 4, graph=True, plant=plant))
    assert (graph.line, graph.ranks, graph.scope) == (22, (0, 1, 2, 3), "uniform")
    assert (tensor.line, tensor.ranks, tensor.scope) == (PLANTED, (2,), "single")
    assert (tensor.bytes_per_step, tensor.bytes, tensor.blocks) == (1048576, 24 * MIB, 24)
    assert (tensor.first_step, tensor.last_step) == (1, 24)


def test_a_tensor_kept_beside_the_graph_on_the_same_ranks_stays_apart():
    found = leaks(train(Job(), 2, graph=True, plant=growing_list))
    assert [(one.line, one.bytes_per_step) for one in found] == [(22, 4 * MIB + 70 * KIB + 4), (PLANTED, MIB)]


@pytest.mark.parametrize("plant", [backward_hook, forward_hook, in_a_thread], ids=lambda plant: plant.__name__)
def test_hooks_and_threads_are_not_part_of_a_kept_graph(plant: Plant):
    found = leaks(train(Job(), 2, graph=True, plant=plant))
    assert sorted(one.line for one in found) == [22, PLANTED]


@pytest.mark.parametrize("scalars", [False, True])
def test_one_cache_in_a_layer_is_not_a_graph(scalars: bool):
    """Also when the loop keeps a harmless list of scalar losses with the same rhythm."""

    def plant(worker: Worker, i: int) -> None:
        worker.alloc(forward(55, layer="rotary"), 256 * KIB)
        if scalars:
            keep(worker, 4, line=24)

    (found,) = leaks(train(Job(), 2, plant=plant))
    assert (found.file, found.line, found.bytes_per_step) == (MODEL, 55, 256 * KIB)


def test_loss_computed_by_the_model():
    """The root is the last allocation of the forward pass when no line of the loop made a scalar."""

    def plant(worker: Worker, i: int) -> None:
        for line in (41, 42, 43):
            worker.alloc(forward(line, layer="kept"), MIB)
        worker.alloc(forward(65, layer="cross_entropy"), 4)

    (found,) = leaks(train(Job(), 2, plant=plant))
    assert (found.file, found.line, found.bytes_per_step) == (MODEL, 65, 3 * MIB + 4)


def test_kept_outputs_with_graph():
    """`outputs.append(model(x))`: no scalar; the last allocation of the model is the kept tensor."""

    def plant(worker: Worker, i: int) -> None:
        for line in (41, 42, 43):
            worker.alloc(forward(line, layer="kept"), MIB)

    (found,) = leaks(train(Job(), plant=plant))
    assert (found.file, found.line, found.bytes_per_step) == (MODEL, 43, 3 * MIB)


def test_loss_in_the_storage_of_its_squares():
    """mse_loss reduces in place: the kept scalar is a large block."""

    def plant(worker: Worker, i: int) -> None:
        for layer in ("tanh", "linear"):
            worker.alloc(forward(0, layer=layer, statement=25, user=False), MIB)
        worker.alloc(stack(at(26), inner=(Frame(SITE + "nn/functional.py", "mse_loss", 3800),)), MIB)

    (found,) = leaks(train(Job(), plant=plant))
    assert (found.file, found.line, found.bytes_per_step) == (TRAIN, 26, 3 * MIB)


def test_custom_autograd_function_is_evidence_of_a_graph():
    """One block of a Function and the scalar that keeps it; a plain layer's block would be a cache."""

    def plant(worker: Worker, i: int) -> None:
        frames = forward(41, layer="gate")
        worker.alloc((Frame(MODEL, "forward", 9), Frame(SITE + "autograd/function.py", "apply", 581), *frames), MIB)
        keep(worker, 4, line=24)

    (found,) = leaks(train(Job(), plant=plant))
    assert (found.file, found.line, found.bytes_per_step) == (TRAIN, 24, MIB + 4)


def test_scalar_and_its_source_in_one_stack_and_a_large_batch():
    """cross_entropy allocates three blocks under one Python line, and the batch is half the graph."""
    loss_line = stack(at(26), inner=(Frame(SITE + "nn/functional.py", "cross_entropy", 3450),))

    def plant(worker: Worker, i: int) -> None:
        keep(worker, MIB, line=24)
        worker.alloc(forward(0, layer="relu", statement=25, user=False), MIB)
        for size in (2560, 4, 4):
            worker.alloc(loss_line, size)

    (found,) = leaks(train(Job(), plant=plant))
    assert (found.line, found.bytes_per_step) == (26, 2 * MIB + 2568)
    assert [part["line"] for part in found.evidence["absorbed"]] == [24, 25]


def test_sequential_model_has_its_lines_in_the_loop():
    """No user code in the model: the forward pass is one line of the loop, the criterion, a module too, another."""

    def plant(worker: Worker, i: int) -> None:
        for layer in ("relu", "tanh", "gelu"):
            worker.alloc(forward(0, layer=layer, statement=25, user=False), MIB)
        worker.alloc(forward(0, layer="log_softmax", statement=26, user=False), KIB)
        worker.alloc(forward(0, layer="nll_loss", statement=26, user=False), 4)

    (found,) = leaks(train(Job(), plant=plant))
    assert (found.file, found.line, found.bytes_per_step) == (TRAIN, 26, 3 * MIB + KIB + 4)


def test_leak_in_a_dataloader_worker_belongs_to_its_rank():
    """Two workers per rank, two batches ahead: they run dry before the loop ends."""
    job = Job()
    frames = (Frame(TRAIN, "__getitem__", PLANTED), Frame(SITE + "utils/data/_utils/worker.py", "_worker_loop", 349))
    ranks = [job.process(rank) for rank in (0, 1)]
    children = {rank.number: [job.process(rank.process.rank, rank) for _ in range(2)] for rank in ranks}

    def plant(worker: Worker, i: int) -> None:
        for number, child in enumerate(children[worker.number]):
            batches = {0: 2}.get(i, int(i % 2 == number)) if i < 21 else 0
            for _ in range(batches):
                child.alloc(frames, 96 * KIB)
                child.free(child.alloc(stack(at(71)), MIB))
            child.next_step()

    (found,) = leaks(train_on(job, ranks, plant))
    assert (found.line, found.ranks, found.evidence["in_child"]) == (PLANTED, (0, 1), True)
    assert found.bytes_per_step == 96 * KIB
    assert found.evidence["per_rank"]["0"]["processes"] == 2


def train_on(job: Job, ranks: list[Worker], plant: Plant, steps: int = 24) -> Job:
    """A bare loop over given processes."""
    for i in range(steps):
        for worker in ranks:
            worker.free(keep(worker, MIB, line=19))
            plant(worker, i)
            worker.next_step()
    return job


# --- ranks ----------------------------------------------------------------------------------------------------------


def test_slopes_that_differ_between_ranks_are_listed():
    def plant(worker: Worker, i: int) -> None:
        keep(worker, MIB * (1 + (worker.process.rank or 0)))

    (found,) = leaks(train(Job(), 3, plant=plant))
    assert (found.ranks, found.bytes_per_step, found.bytes) == ((0, 1, 2), 2 * MIB, 24 * 6 * MIB)
    assert {rank: figures["bytes_per_step"] for rank, figures in found.evidence["per_rank"].items()} == {
        "0": MIB, "1": 2 * MIB, "2": 3 * MIB
    }  # fmt: skip


def test_different_ranks_are_different_findings_though_the_line_is_the_same():
    def plant(worker: Worker, i: int) -> None:
        worker.alloc(stack(at(90, MODEL, "buffer"), at(50)), MIB)
        if worker.process.rank == 2:
            worker.alloc(stack(at(90, MODEL, "buffer"), at(60)), MIB)

    found = leaks(train(Job(), 4, plant=plant))
    assert [(one.line, one.ranks, one.bytes_per_step) for one in found] == [
        (90, (0, 1, 2, 3), MIB), (90, (2,), MIB)
    ]  # fmt: skip


def test_a_rank_with_weaker_evidence_is_counted_with_the_others():
    """Rank 1 allocates in three steps of four only, in no rhythm: too irregular alone, but the stack is known."""

    def plant(worker: Worker, i: int) -> None:
        if worker.process.rank == 0 or i in (1, 4, 6, 12, 14, 20, 21):
            keep(worker, MIB)

    (found,) = leaks(train(Job(), 2, plant=plant))
    assert found.ranks == (0, 1)


def test_same_user_lines_with_other_library_frames_on_other_ranks_are_one_cause():
    def plant(worker: Worker, i: int) -> None:
        other = (Frame(SITE + f"path_{worker.process.rank}.py", "f", 1),)
        worker.alloc(stack(at(PLANTED), inner=other), MIB)

    (found,) = leaks(train(Job(), 4, plant=plant))
    assert (found.ranks, found.evidence["sites"]) == ((0, 1, 2, 3), 4)


def test_an_elastic_restart_is_not_mixed_with_the_life_before():
    job = Job()
    first, second = job.process(0), job.process(0, attempt=1)
    train_on(job, [first], growing_list, steps=25)
    train_on(job, [second], growing_list, steps=15)
    (found,) = leaks(job)
    assert (found.ranks, found.bytes, found.last_step) == ((0,), 15 * MIB, 15)


def test_what_lost_releases_may_explain_is_not_claimed():
    """24 blocks of one stack look alive. Each release that a full ring dropped may be that of one of them."""
    job = Job()
    train_on(job, [job.process(0, lost={"MALLOC": 100, "FREE": 23})], growing_list)
    (found,) = leaks(job)
    assert (found.kind, found.blocks) == (LEAK, 24)

    job = Job()
    train_on(job, [job.process(0), job.process(1, lost={"FREE": 24})], growing_list)
    found, note = leaks(job)
    assert (found.kind, found.ranks) == (LEAK, (0,))
    assert (note.kind, note.ranks, note.evidence["releases"]) == (LOST_RELEASES, (1,), {"1": 24})
    assert note.sentence.startswith("Rank 1: 24 releases were dropped")
    assert note.evidence["unclaimed"] == 1
    assert "1 call stack seems to grow, by no more blocks than that" in note.sentence


def test_a_program_without_ranks():
    job = Job()
    (found,) = leaks(train_on(job, [job.process(None)], growing_list))
    assert (found.ranks, found.scope, list(found.evidence["per_rank"])) == ((), "single", ["train.py"])
    assert found.sentence.startswith("train.py: 1.0 MiB per step is kept from train.py:50")


def test_programs_that_know_nothing_of_each_other_are_never_added_up():
    """Two trainers of one script, each 1 MiB per step from the same line: no rank, and no 2 MiB."""
    job = Job()
    train_on(job, [job.process(None, pid=4711), job.process(None, pid=4712)], growing_list)
    (found,) = leaks(job)
    names = ("train.py [pid 4711]", "train.py [pid 4712]")
    assert (found.ranks, found.processes, found.scope) == ((), names, "group")
    assert (found.bytes_per_step, found.bytes) == (MIB, 48 * MIB)
    assert {name: entry["bytes_per_step"] for name, entry in found.evidence["per_rank"].items()} == dict.fromkeys(
        names, MIB
    )
    assert found.sentence.startswith("train.py [pid 4711] and train.py [pid 4712]: 1.0 MiB per step each is kept")


def test_no_rank_is_said_to_keep_what_none_does():
    """Rank 0 keeps 1 MiB per step, rank 1 two: not "1.5 MiB each"."""

    job = Job()
    ranks = [job.process(0), job.process(1)]

    def plant(worker: Worker, i: int) -> None:
        keep(worker, 2 * MIB if worker is ranks[1] else MIB)

    (found,) = leaks(train_on(job, ranks, plant))
    assert found.bytes_per_step == 1.5 * MIB  # the median, as leaks.csv says
    assert found.sentence.startswith("Ranks 0-1: 1.0 MiB to 2.0 MiB per step each is kept")
    assert "; 24 MiB to 48 MiB after 24 steps (72 MiB on 2 ranks); " in found.sentence


def test_the_confidence_is_that_of_the_rank_that_decided():
    """Rank 0 ended after 5 steps: that it is the first of two equal ones does not make the finding doubtful."""
    job = Job()
    ranks = [job.process(0), job.process(1)]
    train_on(job, ranks, growing_list, 5)
    train_on(job, ranks[1:], growing_list, 25)
    found = leaks(job)[0]
    assert (found.ranks, found.severity) == ((0, 1), "error")
    assert found.confidence > 0.9
    assert "no block of it was ever freed" in found.sentence


def test_a_rank_and_a_program_beside_it_are_two_findings():
    job = Job()
    train_on(job, [job.process(0), job.process(1), job.process(None, pid=9)], growing_list)
    found = leaks(job)
    assert [(one.ranks, one.processes, one.bytes) for one in found] == [
        ((0, 1), (), 48 * MIB),
        ((), ("train.py [pid 9]",), 24 * MIB),
    ]


def test_two_programs_under_one_rank_are_told_apart():
    job = Job()
    train_on(job, [job.process(0, pid=7), job.process(0, pid=8)], growing_list)
    (found,) = leaks(job)
    assert (found.ranks, found.bytes_per_step) == ((), MIB)
    assert found.processes == ("train.py [pid 7] of rank 0", "train.py [pid 8] of rank 0")


def test_a_helper_without_steps_does_not_spoil_the_verdict_of_its_rank():
    job = Job()
    helper = job.process(0, pid=5, command="python3\u241ftokenize.py")
    keep(helper, MIB)
    train_on(job, [job.process(0, pid=6), job.process(1, pid=7)], growing_list)
    found, note = leaks(job)
    assert (found.ranks, found.scope, found.bytes) == ((0, 1), "uniform", 48 * MIB)
    assert (note.kind, note.evidence["judged"], note.processes) == (
        "too_few_steps",
        2,
        ("tokenize.py [pid 5] of rank 0",),
    )
    assert "no steps were seen" in note.sentence


def test_each_rank_on_its_own_device_and_when_it_is_full():
    job = Job()
    ranks = [job.process(rank) for rank in range(4)]

    def plant(worker: Worker, i: int) -> None:
        rank = worker.process.rank or 0
        place = {"device": rank, "device_type": DeviceType.NPU, "pool": Pool.PTA}
        if i == 0:
            worker.alloc(stack(at(12)), 100 * MIB * (rank + 1), **place)
        worker.alloc(stack(at(PLANTED)), MIB, **place)

    train_on(job, ranks, plant)
    (found,) = leaks(job, capacity={"npu": 0, "npu:0": 1024 * MIB, "npu:3": 1024 * MIB})
    assert (found.device, found.pool, found.ranks) == ("npu:0-3", "PTA", (0, 1, 2, 3))
    # rank 3: 400 MiB + 24 MiB in use after step 24, 600 MiB left
    assert (found.evidence["full_at_step"], found.evidence["full_on"]) == (24 + 600, "rank 3")
    assert "rank 3 runs out of memory near step 630" in found.sentence
    # Rank 0 holds 300 MiB less. The others' capacity is not known.
    per_place = found.evidence["full_per_place"]
    assert {name: one["step"] for name, one in per_place.items()} == {"rank 0": 24 + 900, "rank 3": 24 + 600}


def test_the_step_at_which_a_device_is_full_has_a_range():
    """1 MiB a step stays; 40 MiB more live within each step: the device is full 40 steps sooner than at the ends."""
    job = Job()
    (rank,) = [job.process(0)]
    place = {"device": 0, "device_type": DeviceType.NPU, "pool": Pool.PTA}

    def plant(worker: Worker, i: int) -> None:
        if i == 0:
            worker.alloc(stack(at(12)), 100 * MIB, **place)
        worker.alloc(stack(at(PLANTED)), MIB, **place)
        worker.free(worker.alloc(stack(at(30)), 40 * MIB, **place))

    train_on(job, [rank], plant)
    (found,) = leaks(job, capacity={"npu:0": 1024 * MIB})
    assert found.evidence["full_at_step"] == 24 + 900
    assert found.evidence["full_between"] == [24 + 860, 24 + 900]
    assert "near step 930 (between 880 and 930)" in found.sentence


def test_ranks_on_one_host_share_its_memory():
    job = Job()
    train_on(job, [job.process(rank) for rank in range(4)], growing_list)
    (found,) = leaks(job, capacity={"cpu": 1096 * MIB})
    # 4 x 24 MiB in use, 4 MiB per step
    assert found.evidence["full_at_step"] == 24 + 250
    assert found.evidence["full_on"] == "host node0"


@pytest.mark.parametrize(
    ("told", "step"),
    [
        (f"{200 * MIB} {100 * MIB} 20", 20 + 100),
        *((text, None) for text in ("", "1", "a b c", "-1 0 3", f"{1 << 63} 1 2", "5 4 3 2", f"9 1 {1 << 31}")),
    ],
)
def test_a_limit_of_the_address_space_is_foreseen_from_when_it_was_told_and_what_no_process_tells_is_nothing(
    told: str, step: int | None
) -> None:
    job = Job()
    train_on(job, [job.process(0, address_space=told)], growing_list)
    (found,) = leaks(job)
    assert found.evidence.get("full_at_step") == step


# --- one mistake ----------------------------------------------------------------------------------------------------


def one_call(line: int, *inner: Frame) -> tuple[Frame, ...]:
    """In train_one(), which the loop calls."""
    return stack(Frame(TRAIN, "train_one", line), at(40), inner=inner)


LINEAR = (Frame(SITE + "nn/modules/linear.py", "forward", 125), Frame(MODULE, "_call_impl", 1780))


def test_the_locals_of_a_call_whose_exception_is_kept_are_one_finding():
    def plant(worker: Worker, i: int) -> None:
        if i % 3 == 0:
            worker.alloc(one_call(13), 64 * KIB)
            worker.alloc(one_call(14, *LINEAR), 64 * KIB)

    (found,) = leaks(train(Job(), 2, 60, plant=plant))
    assert (found.kind, found.line, found.bytes_per_step) == (LEAK, 13, 128 * KIB / 3)
    assert [part["line"] for part in found.evidence["absorbed"]] == [14]
    assert "one call of train_one()" in found.advice
    assert "traceback" in found.advice


@pytest.mark.parametrize(
    ("text", "is_container"),
    [
        ("list `feats` (24 items), a global of train.py", True),
        ("deque `frames` (24 of at most 100 items), an attribute of Generator", True),  # the program's own words
        ("list `feats` (24 items) in a frame, a local of main() at train.py:9", False),
        ("list `feats` (24 items) in an exception's traceback, a local of main() at train.py:9", False),
    ],
)
def test_a_container_is_told_from_the_frame_of_a_call_whatever_it_is_called(text: str, is_container: bool) -> None:
    assert _lies_in_a_container([{"items": 24, "text": text}]) is is_container


def test_the_call_that_failed_may_be_the_one_that_makes_the_step():
    """train_one() ends with optimizer.step(), so it is taken for the loop. Where it fails, it has run twice by the
    end of the step; a list that is appended to now and then has not."""
    job = Job(step_stack=(STEP_STACK[0], Frame(TRAIN, "train_one", 18), Frame(TRAIN, "<module>", 900)))
    call = Frame(TRAIN, "<module>", 900)
    made: list[Block] = []

    def plant(worker: Worker, i: int) -> None:
        for failed in [True, False] if i % 3 == 0 else [False]:
            for line in (13, 14):
                block = worker.alloc((Frame(TRAIN, "train_one", line), call), 64 * KIB)
                if not failed:
                    made.append(block)
        for line in (23, 24):
            block = worker.alloc((Frame(TRAIN, "train_one", line), call), 64 * KIB)
            if i % 3:
                made.append(block)
        while made:
            worker.free(made.pop())

    train_on(job, [job.process(0)], plant, 60)
    found = sorted(leaks(job), key=lambda one: one.line)
    assert [one.line for one in found] == [13, 23, 24]
    assert [part["line"] for part in found[0].evidence["absorbed"]] == [14]


def test_lists_in_the_loop_or_in_other_calls_stay_apart():
    def plant(worker: Worker, i: int) -> None:
        keep(worker, MIB, line=50)
        keep(worker, MIB, line=51)
        worker.alloc(one_call(13), MIB)
        worker.alloc(stack(Frame(TRAIN, "validate", 80), at(44)), MIB)

    assert sorted(one.line for one in leaks(train(Job(), 2, plant=plant))) == [13, 50, 51, 80]


BACKWARD = (Frame(SITE + "autograd/graph.py", "_engine_run_backward", 824), Frame(SITE + "_tensor.py", "backward", 630))
ADAM = (Frame(SITE + "optim/adam.py", "_init_group", 150), Frame(SITE + "optim/optimizer.py", "wrapper", 480))
PARAMETERS = (Frame(SITE + "nn/modules/linear.py", "Linear.__init__", 106),)


def test_a_kept_module_with_its_gradients_is_one_finding():
    def plant(worker: Worker, i: int) -> None:
        worker.alloc(stack(Frame(MODEL, "__init__", 13), at(40), inner=PARAMETERS), 64 * KIB)
        worker.alloc(stack(at(41), inner=BACKWARD), 64 * KIB)
        worker.alloc(stack(at(42), inner=ADAM), 128 * KIB)

    (found,) = leaks(train(Job(), 2, plant=plant))
    assert (found.file, found.line, found.bytes_per_step) == (MODEL, 13, 256 * KIB)
    assert [part["line"] for part in found.evidence["absorbed"]] == [41, 42]
    assert "hook or lambda" in found.advice


def test_a_module_kept_for_each_epoch_is_one_finding_too():
    """The gradients that stay are those of its last step, one step before the next module is made."""

    def plant(worker: Worker, i: int) -> None:
        if i % 4 == 0:
            worker.alloc(stack(Frame(MODEL, "__init__", 13), at(40), inner=PARAMETERS), 64 * KIB)
            worker.alloc(stack(at(42), inner=ADAM), 128 * KIB)
        held = _state(worker, "gradients")
        new = worker.alloc(stack(at(41), inner=BACKWARD), 64 * KIB)
        if held and i % 4:
            worker.free(held.pop())
        held[:] = [new]

    (found,) = leaks(train(Job(), 1, 64, plant=plant))
    assert (found.file, found.line, found.bytes_per_step) == (MODEL, 13, 64 * KIB)
    assert sorted(part["line"] for part in found.evidence["absorbed"]) == [41, 42]


def test_gradients_alone_or_of_another_rhythm_are_their_own_finding():
    def plant(worker: Worker, i: int) -> None:
        worker.alloc(stack(at(41), inner=BACKWARD), 64 * KIB)
        if i % 2:
            worker.alloc(stack(Frame(MODEL, "__init__", 13), at(40), inner=PARAMETERS), 64 * KIB)

    assert sorted(one.line for one in leaks(train(Job(), 2, 48, plant=plant))) == [13, 41]


def test_create_graph_has_advice_of_its_own(tmp_path):
    source = tmp_path / "train.py"
    source.write_text("loss.backward(create_graph=True)\n")

    def plant(worker: Worker, i: int) -> None:
        worker.alloc((*BACKWARD, Frame(str(source), "<module>", 1)), 64 * KIB)

    (found,) = leaks(train(Job(), 2, plant=plant))
    assert found.advice.startswith("backward(create_graph=True)")
    assert "autograd.grad" in found.advice


# --- growth and levels ----------------------------------------------------------------------------------------------


def test_growth_by_replacement_is_named_with_its_line():
    found = leaks(train(Job(), 2, plant=concatenated))
    (one,) = found
    assert (one.kind, one.line, one.ranks, one.severity) == (GROWTH, PLANTED, (0, 1), "warning")
    assert one.sentence == (
        "Ranks 0-1: 256 KiB more per step each is held from train.py:50; larger blocks replace smaller ones."
    )
    assert "takes the place of the one before" in one.advice


def test_what_has_levelled_off_says_since_when():
    def buffer(worker: Worker, i: int) -> None:
        held = _state(worker, "buffer")
        held.append(keep(worker, MIB))
        if len(held) > 14:
            worker.free(held.pop(0))

    (level,) = everything(train(Job(), 1, 40, plant=buffer))
    assert (level.kind, level.first_step, level.bytes, level.is_note) == (LEVEL, 14, 14 * MIB, True)
    assert level.sentence == "Rank 0: 14 MiB held from train.py:50; level since step 14."


def test_a_full_buffer_is_no_leak_from_its_first_drop_on():
    def replay(worker: Worker, i: int) -> None:
        held = _state(worker, "replay")
        held.append(keep(worker, MIB))
        if len(held) > 30:
            worker.free(held.pop(0))

    for steps in (32, 34, 36, 40, 44):
        assert [one.kind for one in leaks(train(Job(), 1, steps, plant=replay))] in ([GROWTH], [])


# --- limits ---------------------------------------------------------------------------------------------------------


def test_too_few_steps_are_said_and_nothing_is_claimed():
    candidate, note = leaks(train(Job(), 2, 5, plant=growing_list))
    assert candidate.kind == LEAK_CANDIDATE
    assert (note.kind, note.severity, note.ranks) == ("too_few_steps", "info", (0, 1))
    assert note.is_note
    assert note.sentence.startswith("Ranks 0-1: 5 complete steps were seen")


@pytest.mark.parametrize(("api", "teardown"), SHAPES)
def test_short_runs_have_candidates_marked_as_such(api: bool, teardown: bool):
    candidate, note = leaks(train(Job(), 2, 6, api=api, teardown=teardown, plant=growing_list))
    assert (candidate.kind, candidate.line, candidate.ranks) == (LEAK_CANDIDATE, PLANTED, (0, 1))
    assert (candidate.severity, candidate.bytes_per_step) == ("warning", MIB)
    assert candidate.confidence <= 0.5
    assert candidate.sentence.startswith("Ranks 0-1: 1.0 MiB per step each may leak at train.py:50")
    assert candidate.sentence.endswith("; kept in each of 5 steps; too few to be sure.")
    assert note.sentence.endswith("Run longer.")  # it does call step()


def test_a_short_run_of_what_is_known_to_leak_elsewhere_is_no_candidate():
    job = Job()
    train_on(job, [job.process(0)], growing_list, steps=6)
    train_on(job, [job.process(1)], growing_list, steps=24)
    found, note = leaks(job)
    assert (found.kind, found.ranks, note.ranks) == (LEAK, (0, 1), (0,))


def test_the_short_life_of_a_rank_before_its_restart_has_no_candidates():
    job = Job()
    first, second = job.process(0), job.process(0, attempt=1)
    train_on(job, [first], growing_list, steps=6)
    train_on(job, [second], growing_list, steps=24)
    assert [one.kind for one in leaks(job)] == [LEAK]


@pytest.mark.parametrize("plant", CLEAN, ids=lambda plant: plant.__name__)
def test_what_is_freed_or_made_once_is_no_candidate(plant: Plant):
    still_filling = {cache_that_fills, replay_buffer, evaluation_every_6, garbage_every_9}  # nobody can know yet
    found = [one for one in leaks(train(Job(), 2, 5, plant=plant)) if one.kind == LEAK_CANDIDATE]
    assert bool(found) == (plant in still_filling)


def test_twelve_steps_after_the_first_are_enough_for_a_leak_at_every_step():
    (found,) = leaks(train(Job(), 2, 13, plant=growing_list))
    assert (found.kind, found.bytes_per_step, found.bytes) == (LEAK, MIB, 2 * 13 * MIB)
    candidate, note = leaks(train(Job(), 2, 12, plant=growing_list))
    assert (candidate.kind, note.kind) == (LEAK_CANDIDATE, "too_few_steps")


def test_no_steps_at_all():
    job = Job()
    keep(job.process(0), MIB)
    (note,) = leaks(job)
    assert note.kind == "too_few_steps"


def test_nothing_tracked():
    assert leaks(Job()) == []


def test_smallest_leak_worth_a_word():
    def plant(worker: Worker, i: int) -> None:
        keep(worker, 1000)

    job = train(Job(), plant=plant)
    (note,) = everything(job)
    assert (note.kind, note.is_note, note.bytes_per_step) == (SMALL_LEAK, True, 1000)
    assert note.sentence.endswith("1000 B from train.py:50; 9.5 MiB in 10,000 steps.")
    assert [row.cells["kind"] for row in note.rows] == [SMALL_LEAK]
    (found,) = everything(job, options=LeakOptions(min_bytes_per_step=500))
    assert (found.kind, found.bytes_per_step) == (LEAK, 1000)


def test_without_call_stacks_the_pool_itself_is_accused():
    job = Job()
    worker = job.process(0)
    for _ in range(14):
        worker.alloc((), MIB)
        worker.next_step()
    (found,) = leaks(job)
    assert (found.file, found.line, found.bytes_per_step) == ("", 0, MIB)
    assert "an unknown line" in found.sentence
    assert "--call-stack" in found.advice


def test_long_runs_are_judged_on_few_cells():
    job = Job()
    worker = job.process(0)
    frames, churn = stack(at(PLANTED)), stack(at(51))
    for i in range(3000):
        if i % 3 == 0:
            worker.alloc(frames, 4 * KIB)
        worker.free(worker.alloc(churn, MIB))
        # The whole level of each step would be quadratic here: there is one site only.
        for _ in range(1 if i else 2):
            worker.step += 1
            worker.levels.append({(0, 1, -1, 6, job.stack_id(frames)): ((i // 3 + 1) * 4 * KIB, i // 3 + 1)})
    (found,) = leaks(job)
    assert found.bytes_per_step == pytest.approx(4 * KIB / 3, rel=0.002)
    assert found.bytes == pytest.approx(4000 * KIB, rel=0.002)


# --- chance ---------------------------------------------------------------------------------------------------------


LIVES: dict[str, Callable[[np.random.Generator], int]] = {
    "a step or so": lambda rng: int(rng.geometric(0.5)),
    "3 steps at random": lambda rng: int(rng.geometric(0.3)),
    "1 to 6 steps": lambda rng: int(rng.integers(1, 7)),
    "6 steps": lambda _: 6,
    "8 steps at random": lambda rng: int(rng.geometric(0.12)),
}


def churn(seed: list[int], lives: str, steps: int, teardown: bool) -> Job:
    """A process with twelve sites of stationary churn: blocks of random lives, of one size or of random sizes."""
    rng = np.random.default_rng(seed)
    job = Job()
    worker = job.process(0)
    sites = [stack(at(100 + number)) for number in range(12)]
    dies: dict[int, list[Block]] = {}
    for step in range(steps + 1):
        for number, frames in enumerate(sites):
            for _ in range(int(rng.poisson((0.3, 1.0, 3.0)[number % 3]))):
                block = worker.alloc(frames, (int(rng.integers(1, 64)) if number % 2 else 32) * 16 * KIB)
                dies.setdefault(step + LIVES[lives](rng), []).append(block)
        if step < steps:
            worker.next_step()
        for block in dies.pop(step + 1, []):
            worker.free(block)
    if teardown:
        for block in list(worker.live):
            worker.free(block)
    return job


def claimed(runs: int, steps: int, teardown: bool, lives: str) -> Counter[str]:
    """Findings by kind of `runs` times twelve stationary sites."""
    jobs = (churn([steps, len(lives), run], lives, steps, teardown) for run in range(runs))
    return Counter(one.kind for job in jobs for one in leaks(job))


@pytest.mark.parametrize("teardown", [False, True])
@pytest.mark.parametrize("lives", list(LIVES)[:-1])
def test_stationary_churn_of_blocks_with_random_lives_accuses_nobody(lives: str, teardown: bool):
    found = claimed(50, 24, teardown, lives)
    assert set(found) <= {GROWTH}
    assert found[GROWTH] <= 0.01 * 50 * 12


def test_sites_of_ranks_in_step_are_judged_once():
    """600 sites of churn, one leak."""
    job = Job()
    ranks = [job.process(rank) for rank in range(3)]
    rng = np.random.default_rng(3)

    def plant(worker: Worker, i: int) -> None:
        held = _state(worker, "many")
        while held:
            worker.free(held.pop())
        for number in range(200):
            frames = stack(at(1000 + number))
            if i == 0:
                worker.alloc(frames, MIB)
            held.append(worker.alloc(frames, int(rng.integers(1, 100)) * KIB))
        keep(worker, MIB)

    train_on(job, ranks, plant)
    judge = SiteJudge()
    (found,) = leaks(job, judge=judge)
    assert found.ranks == (0, 1, 2)
    # The leak, and each site of churn.
    assert judge.judged == 1 + 600
    leaks(job, judge=judge)
    assert judge.judged == 1 + 600


# --- names ----------------------------------------------------------------------------------------------------------


def test_ranks_are_folded():
    assert fold_ranks((0, 1, 2, 3, 7)) == "0-3,7"
    assert fold_ranks((7, 5, 6, 6, 0)) == "0,5-7"
    assert fold_ranks(()) == ""
    assert (ranks_text((3, 3)), ranks_text({2, 1, 0})) == ("rank 3", "ranks 0-2")


def test_sentence_quotes_the_line_while_it_can_be_read(tmp_path):
    source = tmp_path / "train.py"
    source.write_text("import torch\n    losses.append(`loss`)  # \x1b[31mkept\n")
    (found,) = leaks(train(Job(), 4, graph=True))
    found = worded(replace(found, file=str(source), line=2), Sources())
    assert found.sentence == (
        "Ranks 0-3: 4.1 MiB per step each is kept from train.py:2 `losses.append('loss') # [31mkept`; "
        "97.6 MiB after 24 steps (391 MiB on 4 ranks); 92 % sure: no block of it was ever freed, and a container of "
        "more than 21 blocks looks the same."
    )
    assert "train.py:9;" in worded(replace(found, line=9), Sources()).sentence
    assert "gone.py:2;" in worded(replace(found, file=str(tmp_path / "gone.py")), Sources()).sentence
    assert "train.py:0;" in worded(replace(found, file=str(source), line=0), Sources()).sentence
