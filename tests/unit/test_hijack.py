"""Hooks in frameworks: applied when a module is imported, without changing what a function is, and taken back."""

from __future__ import annotations

import importlib.util
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from msmemscope import framework_hooks, init_framework_hooks
from msmemscope.collect.rank import hijack
from msmemscope.integrations.hook import (
    AROUND,
    CLOSES,
    COMPONENT,
    DETAIL_1,
    DETAIL_2,
    DUMPS,
    MARKS,
    OPENS,
    PROCESS,
    RANGES,
    TAGS,
    hooks,
)
from msmemscope.integrations.maps import MAPS, automatic, covers, find

MODULE = '''
class Base:
    def inherited(self): return "inherited"

class Worker(Base):
    def run(self, x: int, *, fail: bool = False) -> int:
        """Runs."""
        if fail: raise KeyError(x)
        return x + 1
    @staticmethod
    def static(x): return x
    @classmethod
    def of(cls): return cls
    def before(self, fail=False): return 1 // (not fail)
    def behind(self): return 2
    def load(self, model): self.model = model

def function(): return "plain"
'''


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[bool, int, str]]]:
    """Pushes and pops of this thread, which has no session to tell."""
    calls: list[tuple[bool, int, str]] = []
    monkeypatch.setattr(hijack._native, "label_thread", lambda *call: calls.append(call) or True)
    yield calls
    hijack.release()


@pytest.fixture
def name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[str]:
    """A module that nobody has imported."""
    name = f"framework_of_{abs(hash(request.node.name))}"
    (tmp_path / f"{name}.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    yield name
    sys.modules.pop(name, None)


def test_a_function_is_wrapped_when_its_module_is_imported_and_stays_what_it_is(told: list[Any], name: str) -> None:
    labels = ((COMPONENT, "vllm"), (PROCESS, "serve"))
    names = "Worker.run Worker.static Worker.of Worker.inherited function Worker.not_there"
    hijack.apply(hooks(name, names, AROUND, *labels))
    assert name not in sys.modules
    module = importlib.import_module(name)

    worker = module.Worker()
    assert worker.run(1) == 2
    assert told == [(True, 1, "vllm"), (True, 2, "serve"), (False, 2, "serve"), (False, 1, "vllm")]
    assert (module.Worker.run.__doc__, str(inspect.signature(module.Worker.run))) == (
        "Runs.",
        "(self, x: int, *, fail: bool = False) -> int",
    )
    assert (worker.static(3), module.Worker.of(), module.function()) == (3, module.Worker, "plain")
    assert isinstance(vars(module.Worker)["static"], staticmethod)
    del told[:]
    with pytest.raises(KeyError):
        worker.run(1, fail=True)
    assert told[2:] == [(False, 2, "serve"), (False, 1, "vllm")]

    hijack.release()
    del told[:]
    assert (worker.run(1), worker.inherited()) == (2, "inherited")
    assert told == []
    assert "inherited" not in vars(module.Worker)


def test_who_asks_for_hooks_of_another_version_is_told_which_module_has_none(
    told: list[Any], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(hijack, "tell", said.append)
    labels = (COMPONENT, "vllm")
    hijack.apply(hooks(name, "Worker.gone Other.run", AROUND, labels), "init_framework_hooks('verl', …)")
    hijack.apply(hooks(name, "Worker.missing", AROUND, labels))  # by itself, which nobody asked for
    hijack.apply(hooks(name, "Worker.never Worker.run", AROUND, labels), "init_framework_hooks('vllm', …)")

    importlib.import_module(name)

    gone = "has none of Worker.gone, Other.run"
    assert said == [f"Warning: init_framework_hooks('verl', …): {name} of this version {gone}"]


def test_labels_hold_from_the_function_that_opens_to_the_one_that_closes(told: list[Any], name: str) -> None:
    module = importlib.import_module(name)
    hijack.apply(hooks(name, "Worker.before", OPENS, (COMPONENT, "fsdp2")))
    hijack.apply(hooks(name, "Worker.behind", CLOSES, (COMPONENT, "fsdp2")))
    worker = module.Worker()
    worker.before()
    assert told == [(True, 1, "fsdp2")]
    worker.behind()
    assert told == [(True, 1, "fsdp2"), (False, 1, "fsdp2")]


def test_what_fails_to_open_is_closed(told: list[Any], name: str) -> None:
    """A graph whose capture does not begin: nobody ends it. What else is being handled meanwhile does not count."""
    module = importlib.import_module(name)
    hijack.apply(hooks(name, "Worker.before", OPENS, (DETAIL_1, "graph_pool")))
    with pytest.raises(ZeroDivisionError):
        module.Worker().before(fail=True)
    assert told == [(True, 3, "graph_pool"), (False, 3, "graph_pool")]
    del told[:]
    try:
        raise KeyError
    except KeyError:
        module.Worker().before()
    assert told == [(True, 3, "graph_pool")]


def test_what_a_function_made_is_labelled_once_the_most_special_first(
    told: list[Any], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    module = importlib.import_module(name)
    hijack.apply(hooks(name, "Worker.load", TAGS, tag="model"))
    tagged: list[tuple[int, int, str]] = []
    monkeypatch.setattr(
        hijack._native,
        "label_addresses",
        lambda addresses, level, label, _: tagged.extend((address, level, label) for address in addresses),
    )
    linear = torch.nn.Linear(2, 2)
    linear.lora_a = torch.ones(3)
    module.Worker().load(linear)
    found = {(address, level): label for address, level, label in tagged}
    assert found[linear.lora_a.data_ptr(), 4] == "lora"
    assert found[linear.weight.data_ptr(), DETAIL_1] == "weights"
    assert (linear.weight.data_ptr(), 4) not in found


def test_weights_of_a_worker_with_several_models_are_told_apart(
    told: list[Any], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As verl's: the actor's model is in parts, as Megatron's pipelines have it, and there is no reference's engine."""
    import torch

    module = importlib.import_module(name)
    hijack.apply(hooks(name, "Worker.load", TAGS, tag="models_by_role"))
    tagged: dict[int, tuple[int, str]] = {}
    monkeypatch.setattr(
        hijack._native,
        "label_addresses",
        lambda addresses, level, label, _: tagged.update((address, (level, label)) for address in addresses),
    )
    parts = [torch.nn.Linear(2, 2), torch.nn.Linear(2, 3)]
    worker = module.Worker()
    worker.actor = SimpleNamespace(engine=SimpleNamespace(module=parts))
    worker.ref = SimpleNamespace(engine=None)
    worker.load(None)
    assert tagged == {one.data_ptr(): (DETAIL_2, "actor") for part in parts for one in part.parameters()}
    worker.ref = SimpleNamespace(engine=SimpleNamespace(module=torch.nn.Linear(3, 3)))
    worker.load(None)
    assert tagged[worker.ref.engine.module.weight.data_ptr()] == (DETAIL_2, "ref")


def test_a_function_may_be_a_range(told: list[Any], name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module = importlib.import_module(name)
    begun: list[str] = []
    monkeypatch.setattr("msmemscope._native.range_begun", lambda range_name: begun.append(range_name) or 1)
    hijack.apply(hooks(name, "Worker.run", RANGES, tag="vllm.load_model"))
    assert module.Worker().run(1) == 2
    assert (begun, told) == (["vllm.load_model"], [])


def test_a_dump_of_torchs_history_is_the_programs_and_a_snapshot_is_taken_beside_it(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What verl's tool torch_memory calls; a fault of ours does not reach it."""
    taken: list[str] = []

    def take(of: str) -> None:
        taken.append(of)
        raise RuntimeError("no")

    monkeypatch.setattr("msmemscope.snapshots.take_of_own_devices", take)
    monkeypatch.setattr(hijack._native, "stats", lambda: {"recording": True})
    module = importlib.import_module(name)
    hijack.apply(hooks(name, "Worker.static", DUMPS))
    assert module.Worker.static(Path("profile/step2/torch_memory_rank3_pid7.pickle")).name.endswith("pid7.pickle")
    assert module.Worker.static(x="file.pickle") == "file.pickle"
    assert taken == ["torch_memory_rank3_pid7.pickle", "file.pickle"]
    hijack.release()


@pytest.mark.parametrize("hook", automatic(importlib.import_module("torch").__version__), ids=str)
def test_functions_are_there_in_the_installed_version(hook: Any) -> None:
    package = hook.module.partition(".")[0]
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"no {package} here")
    place: Any = importlib.import_module(hook.module)
    for part in hook.name.split("."):
        place = getattr(place, part)
    assert callable(place)


@pytest.mark.parametrize(
    ("key", "version", "is_covered"),
    [
        ("11.0", "11.0", True),
        ("11.0", "11.0.1", False),
        ("2.6+", "2.13.0+cpu", True),
        ("2.6+", "2.5.1", False),
        ("2.10+", "2.9.1", False),
        ("2.6-2.9", "2.9.1", True),
        ("2.6-2.9", "2.10.0", False),
        ("2.6-2.9", "nightly", False),
        ("*", "any", True),
    ],
)
def test_versions_that_a_key_covers(key: str, version: str, is_covered: bool) -> None:
    assert covers(key, version) is is_covered


def test_every_map_is_found_by_its_own_words_and_others_are_refused() -> None:
    for (framework, version, component, hook_type), some in MAPS.items():
        assert set(some) <= set(find(framework, version, component, hook_type)) or version.endswith(("+", "9"))
    assert len(find("pytorch", "2.9.1", "fsdp2", "decompose")) == 10
    assert find("verl", "0.7.0", "TaskRunner", "snapshot")[0].module == "verl.trainer.main_ppo"
    assert find("verl", "0.9.1", "TaskRunner", "snapshot")[0].module == "verl.trainer.main_ppo_v0"
    assert len(find("pytorch", "2.13.0", "fsdp2", "decompose")) == 8
    for wrong, said in (
        (
            ("sglang", "0.5", "worker", "decompose"),
            "unknown framework 'sglang'; known: deepspeed, mindspeed_llm, pytorch, verl, vllm, vllm_ascend",
        ),
        (("verl", "0.7.0", "Worker", "snapshot"), "unknown component 'Worker'; known: TaskRunner, worker"),
        (("verl", "0.7.0", "TaskRunner", "decompose"), "unknown hook type 'decompose'; known: snapshot"),
        (("pytorch", "2.5", "fsdp1", "decompose"), "no hooks for pytorch '2.5'; known: 2.6+"),
    ):
        with pytest.raises(ValueError, match=said.replace("+", r"\+")):
            init_framework_hooks(*wrong)


def test_who_names_its_hooks_gets_no_others(told: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(framework_hooks, "_manual", False)
    framework_hooks.watch_frameworks()
    before = set(hijack._wanted)
    assert len(before) > 10
    init_framework_hooks("vllm_ascend", "11.0", "worker", "decompose")
    assert {hook.module.split(".")[0] for hook in hijack._wanted if hook.how not in (MARKS, DUMPS)} == {"vllm_ascend"}
    framework_hooks.watch_frameworks()
    assert {hook.module.split(".")[0] for hook in hijack._wanted if hook.how not in (MARKS, DUMPS)} == {"vllm_ascend"}
    framework_hooks.cleanup_framework_hooks()
    assert not hijack.is_applied()
