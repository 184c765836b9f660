"""What call stacks prove of blocks, and what does not prove it: histories in which we know whose each block is."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch_snapshots import Allocator, Frames, frames, save

from msmemscope import open_run
from msmemscope._kernel import STACK_ROLES, TRACE_ACTIONS
from msmemscope.imports import external_sort
from msmemscope.imports.job import Request, import_job
from msmemscope.imports.stack_roles import StackRoles
from msmemscope.imports.torch_frames import Role
from msmemscope.imports.torch_snapshot import read_snapshot
from msmemscope.report.analysed import Analysis, analyse
from msmemscope.report.outputs import write_outputs
from msmemscope.tables.run import Run

CALL = ("torch/nn/modules/module.py:1790 _call_impl", "torch/nn/modules/module.py:1779 _wrapped_call_impl")
MAIN = ("train.py:52 main", "train.py:90 <module>")
STEP = ("torch/optim/optimizer.py:500 wrapper", *MAIN)
FORWARD = frames("torch/nn/functional.py:30 relu", "model.py:7 forward", *CALL, *MAIN)
LOSS = frames("torch/nn/functional.py:99 cross_entropy", *MAIN)
STATE = frames("torch/optim/adam.py:178 _init_group", "torch/optim/adam.py:238 step", *STEP)
STEPPING = frames("torch/optim/adam.py:600 _multi_tensor_adam", "torch/optim/adam.py:240 step", *STEP)
GRADS = frames("torch/autograd/__init__.py:120 _make_grads", "torch/autograd/__init__.py:340 backward", *MAIN)
STEP_OF_OPTIMIZER = ("torch/optim/adam.py:238 step", "torch/optim/optimizer.py:500 wrapper")
HOOK = (*STEP_OF_OPTIMIZER, "train.py:9 hook")
ENGINE_RUNS = "torch/autograd/graph.py:970 _engine_run_backward"
LOADED = frames("data.py:4 load", *MAIN)
ENGINE: Frames = []
SIZES = (40960, 8192, 2048)
REAL = Path(os.environ.get("MSMEMSCOPE_SNAPSHOTS", Path(__file__).parents[3] / "shared" / "data" / "snapshots"))


def role_of(tmp_path: Path, *places: str) -> Role:
    card = Allocator()
    card.alloc(512, frames(*places))
    snapshot = read_snapshot(save(card.snapshot(), tmp_path / "s.pickle"))
    roles = StackRoles()
    roles.learn(snapshot.definitions)
    (stack,) = (one for name in ("stack_py", "stack_c") for one in np.unique(snapshot.traces[name]).tolist() if one)
    return Role(roles.of(np.array([stack], np.uint64))[0][0])


@pytest.mark.parametrize(
    ("places", "role"),
    [
        (("torch/nn/functional.py:30 relu", "model.py:7 forward", *CALL, *MAIN), Role.FORWARD),
        # A module's call whose callers are not told may be one within a backward pass.
        (("torch/nn/functional.py:30 relu", "model.py:7 forward", *CALL), Role.NONE),
        (("model.py:7 forward", *CALL, "torch/utils/checkpoint.py:1165 unpack_hook"), Role.IN_BACKWARD),
        (("model.py:7 forward", *CALL, "torch/autograd/graph.py:970 _engine_run_backward", *MAIN), Role.IN_BACKWARD),
        (("torch/autograd/graph.py:970 _engine_run_backward", "torch/_tensor.py:600 backward", *MAIN), Role.BACKWARD),
        (("hook.py:5 hook", "torch/autograd/graph.py:970 _engine_run_backward", *MAIN), Role.IN_BACKWARD),
        (
            ("torch/autograd/graph.py:970 _engine_run_backward", "torch/autograd/__init__.py:500 grad", *MAIN),
            Role.CALLS_GRAD,
        ),
        (("cube.py:9 backward", "torch/autograd/function.py:300 apply"), Role.IN_BACKWARD),
        (("torch/optim/adam.py:178 _init_group", "torch/optim/adam.py:238 step", *STEP), Role.STATE),
        (("torch/optim/sgd.py:400 _multi_tensor_sgd", "torch/optim/sgd.py:120 step", *STEP), Role.OPTIMIZER),
        # What the user's closure allocates is not the optimizer's, nor what an optimizer of others does.
        (("train.py:40 closure", "torch/optim/lbfgs.py:300 step", *STEP), Role.MAIN),
        # Nor is a backward pass over where a hook steps while the engine runs, or the engine's thread does.
        (("torch/optim/adam.py:440 _single_tensor_adam", *HOOK, ENGINE_RUNS, *MAIN), Role.OPTIMIZER_WITHIN),
        (("torch/optim/adam.py:440 _single_tensor_adam", *HOOK), Role.OPTIMIZER_WITHIN),
        (("torch/optim/adam.py:178 _init_group", *HOOK, ENGINE_RUNS, *MAIN), Role.STATE_WITHIN),
        (("torch/optim/adam.py:178 _init_group", *HOOK), Role.STATE_WITHIN),
        (("torch/nn/utils/clip_grad.py:60 clip_grad_norm_", "train.py:9 hook", ENGINE_RUNS, *MAIN), Role.NONE),
        # A program may lie in a directory called torch.
        (("torch/model.py:7 forward", *CALL, "torch/train.py:52 main", "torch/train.py:90 <module>"), Role.FORWARD),
        (("lion.py:40 step", *STEP), Role.MAIN),
        (("torch/optim/lr_scheduler.py:100 step", *MAIN), Role.MAIN),
        (("torch/nn/utils/clip_grad.py:60 clip_grad_norm_", *MAIN), Role.BEHIND),
        (("torch/nn/modules/linear.py:109 __init__", "model.py:3 __init__", *MAIN), Role.WEIGHT),
        (("torch/nn/modules/batchnorm.py:68 __init__", "model.py:3 __init__", *MAIN), Role.MAIN),  # a buffer, perhaps
        (("data.py:4 load", "threading.py:900 run", "threading.py:1000 _bootstrap"), Role.NONE),
        (("data.py:4 load", *MAIN), Role.MAIN),
    ],
)
def test_what_a_stack_proves(tmp_path: Path, places: tuple[str, ...], role: Role) -> None:
    assert role_of(tmp_path, *places) == role


@pytest.mark.parametrize(
    ("proof", "role"),
    [
        # Another stack shows where torch lies.
        ((*CALL, *MAIN), Role.MAIN),
        # Nothing does: it may be torch's.
        (MAIN, Role.OPTIMIZER),
    ],
)
def test_a_folder_of_the_programs_that_is_called_torch_is_not_torchs(
    tmp_path: Path, proof: tuple[str, ...], role: Role
) -> None:
    card = Allocator()
    card.alloc(512, frames("app/torch/optim/lion.py:40 update", "app/torch/optim/lion.py:90 step", *MAIN))
    card.alloc(1024, frames("train.py:7 forward", *proof))
    # What is installed is torch's wherever it is.
    card.alloc(2048, frames("venv/lib/python3.12/site-packages/torch/optim/adam.py:178 _init_group", *MAIN))
    snapshot = read_snapshot(save(card.snapshot(), tmp_path / "s.pickle"))
    roles = StackRoles()
    roles.learn(snapshot.definitions)
    is_block = snapshot.traces["action"] == TRACE_ACTIONS["alloc"]
    stack_of = dict(zip(snapshot.traces["size"][is_block], snapshot.traces["stack_py"][is_block], strict=True))
    found = roles.of(np.array([stack_of[512], stack_of[2048]], np.uint64))[0]
    assert found.tolist() == [role, Role.STATE]


def test_roles_are_those_of_the_native_walk() -> None:
    assert {role.name: role.value for role in Role} == STACK_ROLES


def native(*names: str) -> Frames:
    return [{"name": name, "filename": "??", "line": 0} for name in names]


def test_a_thread_of_the_engine_is_known_by_its_native_frames(tmp_path: Path) -> None:
    engine = native("at::empty", "torch::autograd::Engine::thread_main(std::shared_ptr<...> const&)")
    others = native("at::empty", "torch::autograd::PyNode::apply(...)", *(one["name"] for one in engine[1:]))
    for stack, role in ((engine, Role.BACKWARD), (others, Role.IN_BACKWARD), (native("at::empty"), Role.NONE)):
        card = Allocator()
        card.alloc(512, stack)
        snapshot = read_snapshot(save(card.snapshot(), tmp_path / "s.pickle"))
        roles = StackRoles()
        roles.learn(snapshot.definitions)
        stacks = snapshot.traces["stack_c"][snapshot.traces["stack_c"] != 0]
        assert len(stacks)
        assert set(roles.of(stacks)[0].tolist()) == {role}


def test_parameters_are_told_from_buffers_by_the_line_that_moves_them(tmp_path: Path) -> None:
    card = Allocator()
    moved = [
        frames("torch/nn/modules/module.py:1300 convert", f"torch/nn/modules/module.py:{line} _apply",
               "torch/nn/modules/module.py:933 _apply", "torch/nn/modules/module.py:1350 to", *MAIN)
        for line in (1031, 964)
    ]  # fmt: skip
    for stack in moved:
        card.alloc(512, stack)
    snapshot = read_snapshot(save(card.snapshot(), tmp_path / "s.pickle"))
    roles = StackRoles()
    roles.learn(snapshot.definitions)
    stacks = snapshot.traces["stack_py"][snapshot.traces["size"] == 512]
    assert roles.of(stacks)[0].tolist() == [Role.NONE, Role.WEIGHT]


@pytest.mark.skipif(not REAL.is_dir(), reason="the four real snapshots are not at hand")
def test_of_four_real_ranks_the_parts_of_the_model_fit_together(tmp_path: Path) -> None:
    """52 parameters of 16.3 MiB, as many gradients, two states of each parameter and a step of four bytes."""
    import_job(Request(tuple(sorted(REAL.glob("*.xz"))), tmp_path / "run"))
    analysis = analyse(Run(tmp_path / "run"), config={"analysis": ["decompose"]})
    held = at_end(analysis)
    weights = held["weight"]
    assert weights == 4 * 17094656
    assert held["gradient"] == held["ddp@bucket"] == weights
    assert 0 <= held["optimizer_state"] - 2 * weights <= 4 * 52 * 512
    assert not [one for one in analysis.summary.findings if one.kind == "may_use_more"]  # two ranks leak


# --- histories -------------------------------------------------------------------------------------------------------


class Training:
    """Steps of a training on a GPU, whose engine has no Python; `truth` says whose each address was last."""

    def __init__(self, *, weights_told: bool = False) -> None:
        self.card = Allocator()
        place = frames("torch/nn/modules/linear.py:109 __init__", "model.py:3 __init__", *MAIN)
        self.weights = [self.card.alloc(size, place if weights_told else ENGINE, told=weights_told) for size in SIZES]
        self.gradients: list[int] = []
        self.states: list[int] = []
        self.workspace = 0

    def forward(self) -> list[int]:
        self.card.free(self.card.alloc(30000, FORWARD))
        return [self.card.alloc(60000 + 1000 * layer, FORWARD) for layer in range(3)] + [self.card.alloc(4096, LOSS)]

    def backward(self, saved: list[int]) -> None:
        self.card.free(self.card.alloc(512, GRADS))
        if not self.workspace:
            self.workspace = self.card.alloc(1 << 20, ENGINE)
        for block, size in zip(reversed(saved), (4096, *SIZES), strict=True):
            flowing = self.card.alloc(50000, ENGINE)
            self.card.free(block)
            if size in SIZES:
                self.gradients.append(self.card.alloc(size, ENGINE))
            self.card.free(flowing)
        self.card.free(self.card.alloc(700, ENGINE))

    def drop(self) -> None:
        for block in self.gradients:
            self.card.free(block)
        self.gradients.clear()

    def step(self, *, allocates: bool = True) -> None:
        if not self.states and allocates:
            self.states = [self.card.alloc(size, STATE) for size in SIZES for _ in range(2)]
        if allocates:
            self.card.free(self.card.alloc(9000, STEPPING))

    def train(self, steps: int = 6, **options: bool) -> Allocator:
        for number in range(steps):
            self.card.free(self.card.alloc(100, LOADED))
            self.drop()
            self.backward(self.forward())
            self.step(**(options if number else {}))
        return self.card


def imported(tmp_path: Path, card: Allocator, **wishes: Any) -> Analysis:
    import_job(Request((save(card.snapshot(), tmp_path / "snapshot_rank0.pickle"),), tmp_path / "run", **wishes))
    return analyse(Run(tmp_path / "run"), config={"analysis": ["decompose"]})


def at_end(analysis: Analysis) -> Mapping[str, int]:
    """Bytes by owner, when the last step ended."""
    rows = [row.cells for one in analysis.summary.findings if one.kind == "decompose" for row in one.more_rows
            if row.file == "decompose"]  # fmt: skip
    return {
        str(row["owner"]).removeprefix("CUDA@"): int(row["own_bytes"])
        for row in rows
        if (row.get("scope"), row.get("when"), row.get("pool")) == ("job", "end", "CUDA") and row["own_bytes"]
    }


def owners_by_size(tmp_path: Path) -> dict[int, Counter[str]]:
    """Of every block of the pool: by its size how many had which owner."""
    write_outputs(tmp_path / "run")
    found: dict[int, Counter[str]] = defaultdict(Counter)
    for row in open_run(tmp_path / "run").blocks(columns=["size", "owner", "pool"]).read_all().to_pylist():
        if row["pool"] == "CUDA":
            found[row["size"]][row["owner"] or "unattributed"] += 1
    return found


def test_each_part_of_a_training_is_told_to_the_byte(tmp_path: Path) -> None:
    analysis = imported(tmp_path, Training(weights_told=True).train())
    total = sum(SIZES)
    assert at_end(analysis) == {
        "weight": total, "optimizer_state": 2 * total, "gradient": total, "unattributed": 1 << 20,
    }  # fmt: skip
    (note,) = [one for one in analysis.summary.findings if one.kind == "decompose"]
    assert note.evidence["deduced"] is True
    assert "as far as call stacks prove it" in note.sentence
    peak = note.evidence["peak"]["cuda CUDA"]
    assert peak["CUDA@activation"] >= 60000 + 61000 + 62000
    assert analysis.run.info["imported"]["owners"].startswith("deduced")


def test_weights_from_before_the_history_are_known_by_their_gradients(tmp_path: Path) -> None:
    assert at_end(imported(tmp_path, Training().train()))["weight"] == sum(SIZES)


def test_what_was_there_before_and_is_not_one_to_one_stays_open(tmp_path: Path) -> None:
    training = Training()
    training.card.alloc(SIZES[0], ENGINE, told=False)  # a second one of that size: who knows which is the weight
    assert at_end(imported(tmp_path, training.train()))["weight"] == sum(SIZES[1:])


def test_gradients_that_are_dropped_before_anything_else_are_known_by_their_sizes(tmp_path: Path) -> None:
    """A fused optimizer allocates in its first step alone."""
    analysis = imported(tmp_path, Training().train(allocates=False))
    blocks = [row.cells for one in analysis.summary.findings for row in one.more_rows if row.file == "decompose_steps"]
    ends = {int(row["step"]): int(row["end_bytes"]) for row in blocks
            if row["owner"] == "CUDA@gradient" and row["scope"] == "job"}  # fmt: skip
    assert {ends[step] for step in (2, 3, 4)} == {sum(SIZES)}


def test_a_thread_that_allocates_within_a_backward_pass_ends_no_phase(tmp_path: Path) -> None:
    training = Training(weights_told=True)
    prefetched = frames("data.py:9 prefetch", "threading.py:900 run", "threading.py:1000 _bootstrap")
    backward = training.backward

    def interrupted(saved: list[int]) -> None:
        before = training.card.alloc(77777, ENGINE)
        batch = training.card.alloc(33333, prefetched)
        training.card.alloc(512, ENGINE)
        training.card.free(before)
        backward(saved)
        training.card.free(batch)

    training.backward = interrupted  # type: ignore[method-assign]
    found = at_end(imported(tmp_path, training.train()))
    assert found["gradient"] == sum(SIZES)
    assert found["unattributed"] == (1 << 20) + 6 * 512


NOTED = "Optimizer.step#AdamW.step"


def test_a_range_that_torch_notes_of_a_step_ends_the_backward_pass(tmp_path: Path) -> None:
    """The states were there before, the step allocates nothing, and gradients are dropped ahead of a forward pass."""

    class Fused(Training):
        def step(self, *, allocates: bool = True) -> None:
            self.card.annotate("START", NOTED)
            self.card.annotate("END", NOTED)

    assert at_end(imported(tmp_path, Fused(weights_told=True).train()))["gradient"] == sum(SIZES)


@pytest.mark.parametrize("callers", [(), MAIN])
def test_a_range_of_a_step_ends_nothing_where_one_may_step_within_a_pass(
    tmp_path: Path, callers: tuple[str, ...]
) -> None:
    card = Allocator()
    card.annotate("START", NOTED)
    card.annotate("END", NOTED)
    card.alloc(512, frames("torch/optim/adam.py:178 _init_group", *STEP_OF_OPTIMIZER, *callers))
    roles = StackRoles()
    roles.learn(read_snapshot(save(card.snapshot(), tmp_path / "s.pickle")).definitions)
    assert len(roles.optimizer_ranges()) == bool(callers)


def test_gradients_of_an_input_are_none_of_parameters(tmp_path: Path) -> None:
    training = Training(weights_told=True)
    asking = frames("torch/autograd/__init__.py:120 _make_grads", "torch/autograd/__init__.py:500 grad", *MAIN)
    for _ in range(6):
        training.forward()
        training.card.free(training.card.alloc(512, asking))
        slopes = [training.card.alloc(size, ENGINE) for size in SIZES]
        training.step()
        for block in slopes:
            training.card.free(block)
    imported(tmp_path, training.card, steps_by="none")
    told = owners_by_size(tmp_path)
    assert [told[size] for size in SIZES] == [{"weight": 1, "optimizer_state": 2, "unattributed": 6}] * 3


def test_what_ends_within_a_backward_pass_is_an_activation_where_the_program_made_it_before(tmp_path: Path) -> None:
    """A thread that makes batches may let go of one at any time."""
    training = Training(weights_told=True)
    prefetched = frames("data.py:9 prefetch", "threading.py:900 run", "threading.py:1000 _bootstrap")
    for _ in range(6):
        saved = training.forward()
        batch = training.card.alloc(33333, prefetched)
        training.card.free(training.card.alloc(512, GRADS))
        training.card.alloc(512, ENGINE)
        training.card.free(batch)
        training.backward(saved)
        training.step()
        training.drop()
    imported(tmp_path, training.card)
    told = owners_by_size(tmp_path)
    assert set(told[33333]) == {"unattributed"}
    assert set(told[61000]) == {"activation"}


LETS_GO = ("train.py:9 hook",)


@pytest.mark.parametrize(
    ("by", "owner"),
    [
        # In the thread of the engine's, or below it.
        (LETS_GO, "unattributed"),
        ((*LETS_GO, ENGINE_RUNS, *MAIN), "unattributed"),
        # The engine itself, and where torch noted no stack: it repeats that of the allocation then.
        ((), "activation"),
        ((ENGINE_RUNS, *MAIN), "activation"),
        (("data.py:4 load", *MAIN), "activation"),
    ],
)
def test_what_a_hook_lets_go_of_within_a_backward_pass_is_no_activation(
    tmp_path: Path, by: tuple[str, ...], owner: str
) -> None:
    training = Training(weights_told=True)
    for _ in range(6):
        buffer = training.card.alloc(33333, LOADED)
        saved = training.forward()
        training.card.free(training.card.alloc(512, GRADS))
        training.card.alloc(512, ENGINE)
        training.card.free(buffer, by=frames(*by))
        training.backward(saved)
        training.step()
        training.drop()
    imported(tmp_path, training.card)
    told = owners_by_size(tmp_path)
    assert set(told[33333]) == {owner}
    assert set(told[61000]) == {"activation"}


@pytest.mark.parametrize("is_last", [False, True])
def test_what_the_engine_drops_is_a_gradient_where_none_is_left_and_sizes_are_one_to_one(
    tmp_path: Path, is_last: bool
) -> None:
    """Its temporaries may be as large as gradients. In one of eight passes there is one more of the first size."""
    training = Training(weights_told=True)
    for number in range(8):
        training.drop()
        training.backward(training.forward())
        if number == 4:
            dropped = training.card.alloc(SIZES[0], ENGINE)
            if is_last:
                training.drop()
            training.card.free(dropped)
        training.step()
    imported(tmp_path, training.card)
    told = owners_by_size(tmp_path)
    other = {"weight": 1, "optimizer_state": 2, "gradient": 8}
    first = {**other, "gradient": 7, "unattributed": 2} if is_last else {**other, "unattributed": 1}
    assert [told[size] for size in SIZES] == [first, other, other]


def test_what_an_optimizer_leaves_is_a_state_where_it_is_as_large_as_a_weight_or_a_gradient(tmp_path: Path) -> None:
    training = Training(weights_told=True)
    kept = []
    for number in range(6):
        training.drop()
        training.backward(training.forward())
        if number == 1:
            kept = [training.card.alloc(size, STEPPING) for size in (SIZES[0], 7777)]
        training.step()
    imported(tmp_path, training.card)
    assert len(kept) == 2
    told = owners_by_size(tmp_path)
    assert told[7777] == {"unattributed": 1}
    assert told[SIZES[0]]["optimizer_state"] == 2 + 1


GATHERING = frames("torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py:9 foreach_all_gather", *CALL, *MAIN)


def test_what_a_function_of_a_framework_says_of_a_block_stays(tmp_path: Path) -> None:
    """Gathered weights end within the backward pass, as activations do."""
    training = Training(weights_told=True)
    for _ in range(6):
        training.drop()
        gathered, saved = training.card.alloc(55555, GATHERING), training.forward()
        training.card.free(training.card.alloc(512, GRADS))
        training.card.alloc(512, ENGINE)
        training.card.free(gathered)
        training.backward(saved)
        training.step()
    imported(tmp_path, training.card)
    told = owners_by_size(tmp_path)
    assert set(told[55555]) == {"fsdp2@all_gather_output"}
    assert set(told[62000]) >= {"activation"}


def test_what_functions_say_counts_as_known(tmp_path: Path) -> None:
    card = Allocator()
    for _ in range(3):
        card.alloc(3000, GATHERING)
        card.alloc(1000, frames("train.py:5 main", *MAIN))
    snapshot = save(card.snapshot(), tmp_path / "snapshot_rank0.pickle")
    *_, text = import_job(Request((snapshot,), tmp_path / "run", steps_by="none"))
    assert text.endswith("of 75% of the bytes allocated")


def test_gradients_without_a_weight_or_a_state_are_known_by_coming_back(tmp_path: Path) -> None:
    """The workspace of a library, which the engine leaves, too, stays."""

    class Bare(Training):
        def __init__(self) -> None:
            super().__init__()
            self.card, self.weights = Allocator(), []

        def step(self, *, allocates: bool = True) -> None:
            self.card.free(self.card.alloc(9000, STEPPING))

    found = at_end(imported(tmp_path, Bare().train()))
    assert found == {"gradient": sum(SIZES), "unattributed": 1 << 20}


def test_gradients_that_stay_are_known_by_the_weights_of_their_sizes(tmp_path: Path) -> None:
    imported(tmp_path, Training(weights_told=True).train(steps=1))
    told = owners_by_size(tmp_path)
    assert [told[size]["gradient"] for size in SIZES] == [1, 1, 1]


def test_a_pass_behind_one_that_asked_for_gradients_of_an_input_is_one_like_others(tmp_path: Path) -> None:
    training = Training(weights_told=True)
    asking = frames("torch/autograd/__init__.py:120 _make_grads", "torch/autograd/__init__.py:500 grad", *MAIN)
    saved = training.forward()
    training.card.free(training.card.alloc(512, asking))
    for block in [training.card.alloc(size, ENGINE) for size in SIZES] + saved:
        training.card.free(block)
    assert at_end(imported(tmp_path, training.train()))["gradient"] == sum(SIZES)


def test_what_ends_behind_the_last_allocation_of_the_engine_stays_open(tmp_path: Path) -> None:
    """Its backward pass may have been over: nothing of the engine's shows that it ran on."""
    training = Training(weights_told=True)
    for _ in range(6):
        training.drop()
        late = training.card.alloc(44444, FORWARD)
        training.backward(training.forward())
        training.card.free(late)
        training.step()
    imported(tmp_path, training.card)
    told = owners_by_size(tmp_path)
    assert told[44444] == {"unattributed": 6}
    assert told[62000] == {"activation": 6}


def test_a_temporary_needs_a_pass_in_which_it_begins_and_ends(tmp_path: Path) -> None:
    """The first batch is loaded before anything of a step is known; a later one behind the optimizer's."""
    imported(tmp_path, Training(weights_told=True).train())
    assert owners_by_size(tmp_path)[100] == {"unattributed": 1, "temporary": 5}


@pytest.mark.parametrize("rows", [5, 13])
def test_no_block_is_told_to_be_another_where_events_come_in_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    """What ends in one piece is not told in the next one: then less is known, and nothing else."""
    for name in ("whole", "pieces"):
        (tmp_path / name).mkdir()
    imported(tmp_path / "whole", Training(weights_told=True).train())
    monkeypatch.setattr(external_sort, "BLOCK_ROWS", rows)
    imported(tmp_path / "pieces", Training(weights_told=True).train())
    whole, pieces = owners_by_size(tmp_path / "whole"), owners_by_size(tmp_path / "pieces")
    assert whole.keys() == pieces.keys()
    for size, owners in pieces.items():
        more = owners - whole[size]
        assert set(more) <= {"unattributed"}, size


def test_without_frames_of_torch_nothing_is_deduced(tmp_path: Path) -> None:
    card = Allocator()
    for _ in range(8):
        card.free(card.alloc(4096, frames("train.py:5 main", *MAIN)))
        card.free(card.alloc(4096, ENGINE))
    analysis = imported(tmp_path, card, steps_by="none")
    assert "owners" not in analysis.run.info["imported"]
    assert not [one for one in analysis.summary.findings if one.evidence.get("deduced")]
