"""Who holds a leaked tensor, in the words of object_names.py, for every way to hold one that we planted.

A process of its own with a real torch: the search looks at all objects there are.
"""

from __future__ import annotations

import gc
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import ClassVar

import pytest
from costs import MUCH, cost

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from msmemscope import _native  # noqa: E402
from msmemscope.collect.rank import graphs  # noqa: E402
from msmemscope.collect.rank import holders as search  # noqa: E402
from msmemscope.collect.rank.holders import find_holders  # noqa: E402
from msmemscope.collect.rank.object_paths import way_through  # noqa: E402

N = 30
LONG = 600.0  # seconds: no look-up here ends for want of time
HERE = "test_holders.py"


def tensors(count: int = N) -> list[object]:
    return [torch.ones(1001) for _ in range(count)]


def addresses(of: object) -> list[int]:
    return [int(one.data_ptr()) for one in of]  # type: ignore[attr-defined]


def holder(leaking: list[int]) -> str:
    """What is said of these blocks; one thing alone."""
    found = find_holders({"a": leaking}, LONG)
    assert [one.name for one in found if not one.passes] == ["a"], [one.text for one in found]
    return next(one.text for one in found if not one.passes)


@pytest.mark.parametrize(
    ("key", "way"),
    [
        ("loss", '["loss"]'),
        ('a "b" \\', '["a \\"b\\" \\\\"]'),
        ("two\nlines", "[...]"),
        (-1, "[-1]"),
        (True, "[True]"),
        (0.5, "[0.5]"),
        (float("nan"), "[...]"),
        pytest.param(10**5000, "[...]", id="of which Python makes no text"),
        (("a", 1), '["a", 1]'),
        (("a",), '["a",]'),  # another key than "a"
        ((), "[()]"),
        ((("a", 1), 2), "[..., 2]"),  # another key than a tuple of three
        (b"bytes", "[...]"),
    ],
)
def test_a_key_is_written_as_the_program_does_or_not_at_all(key: object, way: str) -> None:
    held = [1]
    assert way_through([{key: held}], held) == way


feats: list[object] = []


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    yield
    feats.clear()
    gc.collect()


def test_a_global_list_is_called_by_its_name() -> None:
    feats.extend(tensors())
    assert holder(addresses(feats)) == f"list `feats` (30 items), a global of {HERE}"


def test_a_local_variable_of_a_function_under_way_is_named_with_the_function_that_it_is_local_to() -> None:
    def look(passed: object) -> str:
        return holder(addresses(passed))

    losses = tensors()
    said = [holder(addresses(losses)), look(losses)]
    assert [one.partition("_of_")[0] for one in said] == [
        "list `losses` (30 items), a local of test_a_local_variable"
    ] * 2


def test_an_attribute_is_named_with_its_class_with_and_without_a_dictionary_or_slots() -> None:
    class Plain:
        def __init__(self, x: object) -> None:
            self.values = x

    class Slotted:
        __slots__ = ("values",)

        def __init__(self, x: object) -> None:
            self.values = x

    class Shared:
        values = tensors()

    feats.append(Plain(tensors()))
    feats.append(Slotted(deque(tensors())))
    feats.append(Plain(deque(tensors(), maxlen=1000)))
    said = [holder(addresses(one.values)) for one in (*feats, Shared)]  # type: ignore[attr-defined]
    vars(feats[0])  # from now on it has a dictionary of its own
    said.append(holder(addresses(feats[0].values)))  # type: ignore[attr-defined]
    assert said == [
        "list `one.values` (30 items), an attribute of Plain",
        "deque `one.values` (30 items), an attribute of Slotted",
        "deque `one.values` (30 of at most 1,000 items), an attribute of Plain",
        "list `Shared.values` (30 items), an attribute of the class Shared",
        "list `self.values` (30 items), an attribute of Plain",
    ]


history: dict[str, object] = {}


class Replay:
    def __init__(self, items: object) -> None:
        self.items = items


class Trainer:
    metrics: ClassVar[dict[object, object]] = {}

    def __init__(self) -> None:
        self.buffer = Replay(tensors())
        self.log = {"val": {"loss": tensors()}, ("a", 1): [tensors()], Trainer: tensors()}


trainer: list[object] = []


def test_a_container_within_others_is_called_as_the_program_writes_it() -> None:
    def inside() -> Callable[[], object]:
        seen = {"x": tensors()}
        return lambda: seen

    history["losses"] = tensors()
    Trainer.metrics["loss"] = [[], [], [], tensors()]
    one = Trainer()
    globals()["trainer"], keep = one, inside()
    where = {name: addresses(kept) for name, kept in (
        ("global", history["losses"]), ("class", Trainer.metrics["loss"][3]), ("attribute", one.buffer.items),
        ("keys", one.log["val"]["loss"]), ("pair", one.log["a", 1][0]), ("other", one.log[Trainer]),
        ("closure", keep()["x"]),
    )}  # fmt: skip
    feats.extend([[one.buffer], keep])
    del one
    said = {name: holder(kept) for name, kept in where.items()}
    globals()["trainer"] = []
    said["unnamed"] = holder(where["attribute"])
    inner = said.pop("closure")
    history.clear()
    Trainer.metrics.clear()
    assert said == {
        "global": f'list `history["losses"]` (30 items), in a global of {HERE}',
        "class": 'list `Trainer.metrics["loss"][3]` (30 items), in an attribute of the class Trainer',
        "attribute": "list `trainer.buffer.items` (30 items), an attribute of Replay",
        "keys": 'list `trainer.log["val"]["loss"]` (30 items), in an attribute of Trainer',
        "pair": 'list `trainer.log["a", 1][0]` (30 items), in an attribute of Trainer',
        "other": "list `trainer.log[...]` (30 items), in an attribute of Trainer",
        "unnamed": "list `self.items` (30 items), an attribute of Replay",
    }
    assert inner.startswith('list `seen["x"]` (30 items), in a closure of <lambda>()')


def test_an_instance_within_another_of_which_no_variable_is_known_is_called_with_the_class_of_the_other() -> None:
    where: list[int] = []
    whole = Trainer()
    where += addresses(whole.buffer.items)
    feats.append([whole])
    del whole
    assert holder(where) == "list `self.buffer.items` (30 items), an attribute of Replay in Trainer"


def test_what_accumulates_is_named_and_not_what_holds_each_one() -> None:
    class Sample:
        def __init__(self, x: object) -> None:
            self.x = x

    feats.extend(Sample(one) for one in tensors())
    where = addresses(one.x for one in feats)  # type: ignore[attr-defined]
    assert holder(where) == f"list `feats` (30 items), a global of {HERE}, through Sample"


def test_a_closure_a_default_argument_and_a_generator() -> None:
    def closure() -> Callable[[], list[object]]:
        seen = tensors()
        return lambda: seen

    def default(kept: list[object] = tensors()) -> list[object]:  # noqa: B008
        return kept

    def generator() -> Iterator[list[int]]:
        got = tensors()
        yield addresses(got)

    keep, running = closure(), generator()
    feats.append(keep)
    said = [holder(addresses(keep())), holder(addresses(default())), holder(next(running))]
    assert [one.partition(" at ")[0] for one in said] == [
        "list `seen` (30 items), in a closure of <lambda>()",
        "a list (30 items), a default argument of default()",
        "a list (30 items) in the generator generator()",
    ]


def test_a_hook_is_told_with_its_module() -> None:
    def make(layer: nn.Module) -> None:
        outputs: list[object] = []
        layer.register_forward_hook(lambda module, args, out: outputs.append(out.detach().clone()))

    layer = nn.Linear(7, 7)
    make(layer)
    before = {id(one) for one in gc.get_objects()}
    for _ in range(N):
        layer(torch.ones(11, 7))
    made = [one for one in gc.get_objects() if type(one) is torch.Tensor and id(one) not in before]
    where = addresses(one for one in made if tuple(one.shape) == (11, 7))
    del made
    assert holder(where).startswith(f"a forward hook of Linear, <lambda>() at {HERE}:")


def test_modules_in_cycles_are_one_thing_and_told_as_what_the_collector_alone_frees() -> None:
    class Probe(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(13, 13)
            self.register_forward_hook(lambda *args, me=self: None)

    gc.disable()
    try:
        where = [Probe().inner.weight.data_ptr() for _ in range(N)]
        said = holder(where)
    finally:
        gc.enable()
    assert said.startswith("a forward hook of Probe, <lambda>() at")
    assert said.endswith("a cycle, which only the garbage collector frees")


def test_exceptions_that_are_kept_hold_the_frames_of_their_traceback() -> None:
    def fails() -> None:
        batch = torch.ones(1001)
        where.append(batch.data_ptr())
        raise ValueError(where)

    where: list[int] = []
    for _ in range(N):
        try:
            fails()
        except ValueError as error:
            feats.append(error)
    assert holder(where).startswith(f"list `feats` (30 items), a global of {HERE}, through the frame of fails() at")
    where.clear()
    del feats[1:]
    said = holder([feats[0].__traceback__.tb_next.tb_frame.f_locals["batch"].data_ptr()])  # type: ignore[attr-defined]
    assert said.startswith("`batch` in an exception's traceback, a local of fails() at")


def test_the_graph_of_a_sum_of_losses_is_told_by_the_tensor_and_the_passes() -> None:
    model = nn.Linear(4, 4)
    total = torch.zeros(())
    for _ in range(N):
        total = total + model(torch.ones(3, 4)).square().sum()
    found = [one for one in find_holders({}, LONG) if one.passes]
    assert [one.passes for one in found] == [N]
    assert found[0].text.startswith("the autograd graph of `total`, a local of test_the_graph")
    assert not found[0].addresses


def test_of_a_graph_the_attribute_that_keeps_it_is_named_and_nothing_on_the_way() -> None:
    model, meter = nn.Linear(4, 4), Held(torch.zeros(()))
    for _ in range(N):
        meter.x = meter.x + model(torch.ones(3, 4)).square().sum()
    (found,) = [one for one in find_holders({}, LONG) if one.passes]
    assert found.text == "the autograd graph of `meter.x`, an attribute of Held: 30 forward passes"


@pytest.mark.filterwarnings("ignore:Using backward")
def test_the_graph_of_gradients_is_told_though_no_variable_holds_them() -> None:
    model = nn.Linear(4, 4)
    for _ in range(N):
        model(torch.ones(3, 4)).square().sum().backward(create_graph=True)
    for parameter in model.parameters():
        parameter.grad.detach()  # from now on it is an object of Python, too
    (found,) = [one for one in find_holders({}, LONG) if one.passes]
    assert found.text.startswith("the autograd graph of a tensor that no variable holds, such as a gradient: ")
    for parameter in model.parameters():
        parameter.grad = None


def test_arrays_that_share_a_tensors_memory_hold_it_where_the_collector_sees_who_has_them() -> None:
    whole = tensors()
    where = addresses(whole)
    feats.extend(one.numpy()[3:5][1:] for one in whole)  # type: ignore[attr-defined]
    whole.clear()
    assert holder(where) == f"list `feats` (30 items), a global of {HERE}"


def test_arrays_in_an_array_of_objects_are_not_seen_and_it_is_said() -> None:
    numpy = pytest.importorskip("numpy")
    kept = numpy.empty(N, object)
    kept[:] = [one.numpy() for one in tensors()]  # type: ignore[attr-defined]
    assert holder([one.base.data_ptr() for one in kept]) == ""


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="there nobody counts references to None")
def test_a_look_at_arrays_leaves_no_reference_behind() -> None:
    numpy = pytest.importorskip("numpy")
    arrays = [numpy.zeros(1) for _ in range(10_000)]  # with memory of their own: their base is None
    before = sys.getrefcount(None)
    _native.references([arrays], [object()], [], 10, 60.0, False, numpy.ndarray)
    assert abs(sys.getrefcount(None) - before) < 5000


def test_a_part_of_a_tensor_holds_all_of_its_memory() -> None:
    whole = tensors()
    where = addresses(whole)
    feats.extend(one[-5:] for one in whole)  # type: ignore[index]
    whole.clear()
    assert holder(where) == f"list `feats` (30 items), a global of {HERE}"


def test_where_no_leak_is_known_tensors_of_one_size_are_a_group_with_the_addresses_that_the_analysis_knows() -> None:
    feats.extend(tensors())
    found = [one for one in find_holders(None, LONG) if "`feats`" in one.text]
    assert [(one.found, one.of, one.name) for one in found] == [(24, 24, "")]
    assert set(found[0].addresses) <= set(addresses(feats))


def test_where_no_leak_is_known_tensors_of_many_sizes_are_a_group_if_they_lie_in_one_thing() -> None:
    feats.extend(torch.ones(2000 + n) for n in range(N))
    elsewhere = [[torch.ones(5000 + n)] for n in range(N)]
    found = [one for one in find_holders(None, LONG) if "`feats`" in one.text]
    assert [(one.found, one.of, one.items) for one in found] == [(24, 24, N)]
    assert set(found[0].addresses) <= set(addresses(feats))
    assert len(elsewhere) == N


class Hostile:
    """Whoever calls one of these is found out."""

    called: ClassVar[list[str]] = []

    def __init__(self, x: object) -> None:
        object.__setattr__(self, "hidden", x)

    def __getattribute__(self, name: str) -> object:
        Hostile.called.append(name)
        return object.__getattribute__(self, name)

    def __eq__(self, other: object) -> bool:
        Hostile.called.append("==")
        return True

    def __hash__(self) -> int:
        Hostile.called.append("hash")
        return 1

    def __repr__(self) -> str:
        Hostile.called.append("repr")
        return ""

    def __len__(self) -> int:
        Hostile.called.append("len")
        return 1

    def __bool__(self) -> bool:
        Hostile.called.append("bool")
        return False

    @property
    def __dict__(self) -> dict[str, object]:  # type: ignore[override]
        Hostile.called.append("__dict__")
        return {}


class HostileList(list):  # type: ignore[type-arg]
    def __len__(self) -> int:
        Hostile.called.append("len")
        return 0

    def __iter__(self) -> Iterator[object]:
        Hostile.called.append("iter")
        return super().__iter__()


class Torched(torch.Tensor):  # type: ignore[misc]
    @classmethod
    def __torch_function__(cls, func: object, types: object, args: object = (), kwargs: object = None) -> object:
        Hostile.called.append("torch function")
        return super().__torch_function__(func, types, args, kwargs or {})  # type: ignore[arg-type]


def test_nothing_of_the_program_is_called_changed_or_kept() -> None:
    kept = [torch.ones(1001).as_subclass(Torched) for _ in range(N)]
    where = addresses(kept)
    feats.append(HostileList(Hostile(one) for one in kept))
    kept.clear()
    module = ModuleType("hostile")
    module.__dict__["__getattr__"] = lambda name: Hostile.called.append("module")
    sys.modules["hostile"] = module
    before = sys.getrefcount(feats[0]), sys.getrefcount(feats)
    Hostile.called.clear()
    try:
        found = find_holders({"a": where}, LONG)
    finally:
        del sys.modules["hostile"]
    assert Hostile.called == []
    assert found[0].name == "a"
    assert found[0].text == f"HostileList `feats[0]` (30 items), in a global of {HERE}, through Hostile"
    after = sys.getrefcount(feats[0]), sys.getrefcount(feats)
    assert after == before
    assert not any(type(one) in (search.Group, search._Climb) for one in gc.get_objects())


def test_a_look_up_is_bounded_in_time_however_many_objects_there_are() -> None:
    feats.extend([[] for _ in range(1_000_000)])
    losses = tensors()
    where = addresses(losses)
    begun = time.thread_time()
    gc.get_objects()
    listed = time.thread_time() - begun
    begun = time.thread_time()
    find_holders({"a": where}, 0.2)
    # What cannot be stopped: the listing, a look at each class, and what is half done at the deadline.
    assert time.thread_time() - begun < 0.2 + 6 * listed + 0.2


def test_nothing_is_looked_up_without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch")
    assert find_holders({"a": [1]}, LONG) == []


def bounds(leaking: list[int]) -> list[tuple[int, int]]:
    return [(one.items, one.bound) for one in find_holders({"a": leaking}, LONG) if not one.passes]


class Held:
    def __init__(self, x: object) -> None:
        self.x = x


@pytest.mark.parametrize("wrapped", [False, True])
def test_what_lies_in_a_container_with_a_bound_and_in_something_else_has_no_bound(wrapped: bool) -> None:
    things = [Held(one) if wrapped else one for one in tensors()]
    where = addresses(one.x for one in things) if wrapped else addresses(things)  # type: ignore[attr-defined]
    recent = deque(things, maxlen=100)
    nested = {"queue": [recent]}
    last = things[-1]
    things.clear()
    assert bounds(where) == [(N, 100)]
    feats.append([*recent])
    assert {bound for _, bound in bounds(where)} == {0}
    feats.clear()
    feats.extend(Held(one) for one in recent)
    assert {bound for _, bound in bounds(where)} == {0}
    assert nested["queue"][0][-1] is last


def kept_of(recent: object, *, leaking: list[int]) -> list[set[int]]:
    """What is told to be kept by graphs of some entries of a deque, which alone holds these."""
    (found,) = [one for one in find_holders({"a": leaking}, LONG) if one.bound]
    return [set(one) for one in found.kept]


def test_the_graphs_of_what_a_container_with_a_bound_holds_keep_what_is_told_for_each() -> None:
    model, inputs, recent = nn.Linear(10, 10), [torch.randn(4, 10) for _ in range(N)], deque(maxlen=100)  # type: ignore[var-annotated]
    recent.extend((model(one).tanh() ** 2).sum() for one in inputs)
    given = {one.data_ptr(): n for n, one in enumerate(inputs)}
    kept = kept_of(recent, leaking=addresses(recent))
    assert len(kept) == 2
    assert all(len(one) == 2 for one in kept)  # an input, which is Python's too, and what tanh() made for both
    assert len({given[address] for one in kept for address in one if address in given}) == 2
    assert not {address for one in kept for address in one} & set(addresses(model.parameters()))
    for one in recent:
        one.backward()
    assert kept_of(recent, leaking=addresses(recent)) == [set()] * 2  # backward() has let go of it


@pytest.mark.parametrize("most", [6_000, 40])
def test_what_a_chain_of_graphs_holds_has_no_bound_whatever_the_container_drops(
    most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graphs, "_NODES", most)
    model, recent, state = nn.Linear(10, 10), deque(maxlen=100), torch.zeros(4, 10)  # type: ignore[var-annotated]
    for _ in range(N):
        state = model(state).tanh()
        recent.append(state)
    (found,) = [one for one in find_holders({"a": addresses(recent)}, LONG) if not one.passes]
    assert found.text.endswith(", each by the graphs of later ones, too")
    assert (found.items, found.bound) == (N, 0)


def deep_losses(nodes: int) -> deque[object]:
    """In a deque, each with a graph of its own, which keeps two blocks."""
    model, recent = nn.Linear(10, 10), deque(maxlen=100)  # type: ignore[var-annotated]
    for _ in range(N):
        out = model(torch.randn(4, 10))
        for _ in range(nodes):
            out = -out
        recent.append(out.exp())
    return recent


def test_a_graph_of_many_nodes_is_looked_through() -> None:
    recent = deep_losses(7_000)
    kept = kept_of(recent, leaking=addresses(recent))
    assert [len(one) for one in kept] == [2, 2]  # the input, and what exp() made


ENDS = """
import torch
from msmemscope.collect.rank.holders import find_holders
from msmemscope.collect.rank.graphs import Room
state, states, room = torch.ones(2, requires_grad=True) * 1, [], Room()
for number in range(80_000):
    state = state.tanh()
    if number % 2_000 == 0:
        states.append(state)
for _ in range(3):
    find_holders({"a": [one.data_ptr() for one in states]}, 600.0, room)
    states = states[::2]
while states:
    del states[0]  # what was made last goes last, and all with it
del state
print("ended")
"""


@pytest.mark.parametrize("kib", [8192, 2048])
def test_a_long_chain_of_graphs_that_was_looked_at_ends_as_it_would_have(kib: int) -> None:
    """Where torch keeps objects for nodes that were asked for, those of all of them would overflow the stack."""
    ulimited = ["sh", "-c", f'ulimit -S -s {kib} && exec "$@"', "sh", sys.executable, "-c", ENDS]
    done = subprocess.run(ulimited, capture_output=True, text=True, timeout=LONG, check=False)
    assert (done.returncode, done.stdout) == (0, "ended\n"), done.stderr


def test_of_a_graph_that_is_too_large_to_be_looked_through_nobody_says_what_it_keeps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(graphs, "_NODES", 40)
    recent = deep_losses(60)
    (found,) = [one for one in find_holders({"a": addresses(recent)}, LONG) if not one.passes]
    assert found.text.endswith(", whose graphs are too large to be looked through")
    assert (found.items, found.bound, list(found.kept)) == (N, 0, [])


def test_no_hook_that_unpacks_a_saved_tensor_is_called() -> None:
    called = []
    recent = deque(maxlen=100)  # type: ignore[var-annotated]
    weights = [torch.randn(50, requires_grad=True) for _ in range(N)]
    with torch.autograd.graph.saved_tensors_hooks(lambda one: one, lambda one: called.append(1) or one):
        recent.extend(one.exp().sum() for one in weights)
    kept = kept_of(recent, leaking=addresses(recent))
    assert (called, [len(one) for one in kept]) == ([], [1, 1])


def test_who_else_holds_a_tensor_costs_what_leads_to_it_alone() -> None:
    def spent(known: int) -> float:
        climb = search._Climb([], {}, 0.0, search.Room(), 0.0)
        elsewhere, kept, beside, tensor = [object() for _ in range(known)], [0], [1], object()
        for one in elsewhere:
            climb._learn(elsewhere, one)
        climb._learn(kept, tensor)
        climb._learn(beside, tensor)

        def ask() -> None:  # as often as there are groups
            assert {climb.held_beside(kept, [tensor], is_last=True) for _ in range(24)} == {1}

        return cost(ask)

    assert spent(known=200_000) < MUCH * spent(known=2)
