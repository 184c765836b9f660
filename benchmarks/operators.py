"""What recording operators costs a launch-bound training step, beside what else can record them, in one process.

``python benchmarks/operators.py [cpu|npu [BLOCKS]]``. A step is the transformer of examples/transformer.py on one rank
and one thread. Blocks of steps alternate between the plain program and each way, so what else the machine does hits
all of them; the figure is the median over blocks of time(watched) / time(plain blocks beside it), in CPU time of the
process and in wall time. The real agent and aggregator run meanwhile on the other core. `npu` is for the Python of
.venv-npu, on the simulated card.
"""

from __future__ import annotations

import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "examples"))

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from transformer import TransformerLM, batches  # noqa: E402

from msmemscope import _native  # noqa: E402
from msmemscope.collect import torch_ext  # noqa: E402
from msmemscope.collect.rank.attach import attach  # noqa: E402
from msmemscope.collect.rank.dispatch_mode import make_mode  # noqa: E402
from msmemscope.collect.session import Session  # noqa: E402
from msmemscope.launchers.services import Services  # noqa: E402
from msmemscope.options.declared import Config  # noqa: E402

STEPS_PER_BLOCK = 5
BLOCKS = 11  # unless the command line says how many
OPERATORS, ACCESSES = 1, 4
RECORD_BYTES = 96


class Training:
    """The transformer, ready to step."""

    def __init__(self, device: str) -> None:
        torch.manual_seed(0)
        torch.set_num_threads(1)
        self.device = device
        self.model = TransformerLM().to(device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-3)
        self.data = [(x.to(device), y.to(device)) for x, y in batches(STEPS_PER_BLOCK)]

    def plain_ms(self) -> float:
        return min(self.block()[1] for _ in range(4)) / STEPS_PER_BLOCK * 1e3

    def block(self) -> tuple[float, float]:
        """Runs STEPS_PER_BLOCK steps; seconds of CPU and of wall."""
        cpu, wall = time.process_time(), time.perf_counter()
        for x, y in self.data:
            loss = F.cross_entropy(self.model(x).flatten(0, 1), y.flatten())
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
        if self.device != "cpu":
            torch.accelerator.synchronize()
        return time.process_time() - cpu, time.perf_counter() - wall


@contextmanager
def recording(sorts: int, stack_depth: int = 32, mode: AbstractContextManager[object] | None = None) -> Iterator[None]:
    _native.configure(f"sorts={sorts};python_depth={stack_depth}")
    _native.start()
    try:
        if mode is None:
            yield
        else:
            with mode:
                yield
    finally:
        _native.stop()


@contextmanager
def torch_profiler() -> Iterator[None]:
    from torch.profiler import ProfilerActivity, profile

    os.environ["KINETO_LOG_LEVEL"] = "5"
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True, profile_memory=True):
        yield


@contextmanager
def not_recording() -> Iterator[None]:
    yield


def measure(training: Training, blocks: int, ways: dict[str, Callable[[], AbstractContextManager[object]]]) -> None:
    ratios: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    records: dict[str, int] = {}
    for _ in range(blocks):
        for name, way in ways.items():
            training.block()  # changing the way empties the caches
            before = training.block()
            with way():
                training.block()
                head = _native.stats()["head"]
                watched = training.block()
                records[name] = (_native.stats()["head"] - head) // RECORD_BYTES // STEPS_PER_BLOCK
            training.block()
            after = training.block()
            ratios[name].append(tuple(2 * w / (b + a) for b, w, a in zip(before, watched, after, strict=True)))  # type: ignore[arg-type]
    for name, found in ratios.items():
        low, cpu, high = statistics.quantiles([cpu for cpu, _ in found], n=4)
        wall = statistics.median(wall for _, wall in found)
        print(f"{name:52} {cpu:6.3f}x  {low:6.3f}x {high:6.3f}x  {wall:6.3f}x  {records[name] or ''}")


def main() -> None:
    device = sys.argv[1] if len(sys.argv) > 1 else "cpu"
    blocks = int(sys.argv[2]) if len(sys.argv) > 2 else BLOCKS
    cores = sorted(os.sched_getaffinity(0))
    output = tempfile.mkdtemp(prefix="msmemscope-bench-")
    session = Session.create(Config(output_path=output, collect_mode="deferred"), sys.argv, mode="launched")
    services = Services(session)
    if len(cores) > 1:
        os.sched_setaffinity(0, {cores[0]})
        for service in (services.agent, services.aggregator):
            os.sched_setaffinity(service.pid, {cores[-1]})
    try:
        attach(session)
        _native.configure(f"devices={device}")
        training = Training(device)
        training.block()
        both = OPERATORS | ACCESSES
        step = f"{training.plain_ms():.1f} ms plain"
        print(f"{blocks} blocks of {STEPS_PER_BLOCK} steps of the transformer on {device}, {step}")
        print(f"{'watched / plain':52} {'CPU':>7}  {'quartiles':>15}  {'wall':>7}  records per step")
        # Before the observer is there, which would see them too.
        measure(training, blocks, {"the same by a TorchDispatchMode": lambda: recording(both, mode=make_mode(torch))})
        _native.observe_operators(torch_ext.build(torch_ext.torch_of(torch)) or "")
        measure(
            training,
            blocks,
            {
                "observer loaded, not recording": not_recording,
                "memory alone": lambda: recording(0),
                "memory and operators": lambda: recording(OPERATORS),
                "memory, operators and accesses": lambda: recording(both),
                "memory, operators and accesses, no Python stacks": lambda: recording(both, 0),
                "torch.profiler, shapes and memory": torch_profiler,
            },
        )
        print(f"lost: {_native.stats()['lost']}")
    finally:
        services.stop()
        shutil.rmtree(session.directory, ignore_errors=True)
        shutil.rmtree(output, ignore_errors=True)


if __name__ == "__main__":
    main()
