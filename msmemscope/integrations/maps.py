"""Which frameworks have maps, by framework, version, component and type, in upstream's words.

A key of versions is exact ("11.0"), from one on ("2.6+"), from one to all patches of another ("2.6-2.9"), or "*".
"""

from __future__ import annotations

from msmemscope.integrations.deepspeed import ZERO
from msmemscope.integrations.fsdp import FSDP1, FSDP2, FSDP2_COLLECTIVES, FSDP2_FUNCTIONS
from msmemscope.integrations.graphs import GRAPHS
from msmemscope.integrations.hook import Hook
from msmemscope.integrations.mindspeed import TRAINING
from msmemscope.integrations.torch_history import DUMPS_OF_HISTORY
from msmemscope.integrations.verl import PHASES, TASK_RUNNER, TASK_RUNNER_SINCE
from msmemscope.integrations.verl import WORKER_SNAPSHOTS as VERL_SNAPSHOTS
from msmemscope.integrations.vllm import SLEEP
from msmemscope.integrations.vllm import WORKER as VLLM_WORKER
from msmemscope.integrations.vllm import WORKER_SNAPSHOTS as VLLM_SNAPSHOTS
from msmemscope.integrations.vllm_ascend import WORKER, WORKER_SNAPSHOTS

DECOMPOSE, SNAPSHOT = "decompose", "snapshot"

MAPS: dict[tuple[str, str, str, str], tuple[Hook, ...]] = {
    ("vllm_ascend", "11.0", "worker", DECOMPOSE): WORKER,
    ("vllm_ascend", "11.0", "worker", SNAPSHOT): WORKER_SNAPSHOTS,
    ("vllm", "0.10+", "worker", DECOMPOSE): VLLM_WORKER,
    ("vllm", "0.10+", "worker", SNAPSHOT): VLLM_SNAPSHOTS,
    ("verl", "0.7.0", "TaskRunner", SNAPSHOT): TASK_RUNNER,
    ("verl", "0.8+", "TaskRunner", SNAPSHOT): TASK_RUNNER_SINCE,
    ("verl", "0.8+", "worker", DECOMPOSE): PHASES,
    ("verl", "0.8+", "worker", SNAPSHOT): VERL_SNAPSHOTS,
    ("mindspeed_llm", "0.12.1", "training", SNAPSHOT): TRAINING,
    ("deepspeed", "0.12+", "zero", DECOMPOSE): ZERO,
    ("pytorch", "2.3+", "graphs", DECOMPOSE): GRAPHS,
    ("pytorch", "2.6+", "fsdp1", DECOMPOSE): FSDP1,
    ("pytorch", "2.6+", "fsdp2", DECOMPOSE): FSDP2,
    ("pytorch", "2.6-2.9", "fsdp2", DECOMPOSE): FSDP2_FUNCTIONS,
    ("pytorch", "2.10+", "fsdp2", DECOMPOSE): FSDP2_COLLECTIVES,
}

# Whatever is recorded: moments between which the audit looks, and snapshots that somebody else asked torch for.
ALWAYS: tuple[Hook, ...] = (*SLEEP, *DUMPS_OF_HISTORY)


def find(framework: str, version: str, component: str, hook_type: str) -> tuple[Hook, ...]:
    """The hooks for that; an exact version wins, else all keys that cover it. ValueError that names what there is."""
    _known("framework", framework, {key[0] for key in MAPS})
    _known("component", component, {key[2] for key in MAPS if key[0] == framework})
    _known("hook type", hook_type, {key[3] for key in MAPS if (key[0], key[2]) == (framework, component)})
    keys = {key[1]: found for key, found in MAPS.items() if (key[0], *key[2:]) == (framework, component, hook_type)}
    if version in keys:
        return keys[version]
    covering = [hook for key, found in keys.items() if covers(key, version) for hook in found]
    if not covering:
        raise ValueError(f"no hooks for {framework} {version!r}; known: {', '.join(keys)}")
    return tuple({(hook.module, hook.name, hook.how): hook for hook in covering}.values())


def automatic(torch_version: str) -> tuple[Hook, ...]:
    """Those that say owners, of every framework; of torch those of its version."""
    found: list[Hook] = []
    for (framework, version, _, hook_type), some in MAPS.items():
        if hook_type == DECOMPOSE and (framework != "pytorch" or covers(version, torch_version)):
            found += some
    return tuple(found)


def covers(key: str, version: str) -> bool:
    """Whether a key of versions covers one such as "2.10.1+cpu"."""
    if key in ("*", version):
        return True
    number = _numbers(version)
    if not number:
        return False
    if key.endswith("+"):
        return number >= _numbers(key[:-1])
    first, _, last = key.partition("-")
    most = _numbers(last)
    return bool(most) and _numbers(first) <= number and number[: len(most)] <= most


def _numbers(version: str) -> tuple[int, ...]:
    numbers: list[int] = []
    for part in version.partition("+")[0].split("."):
        digits = part[: len(part) - len(part.lstrip("0123456789"))]
        if not digits:
            break
        numbers.append(int(digits))
    return tuple(numbers)


def _known(what: str, value: str, known: set[str]) -> None:
    if value not in known:
        raise ValueError(f"unknown {what} {value!r}; known: {', '.join(sorted(known))}")
