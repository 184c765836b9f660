"""What recording costs the program: `import`, one event, and one training step, as ratios within one process.

Run by `make bench`. A step is the two-layer transformer of examples/transformer.py on one rank and one thread. Blocks
of steps alternate between the plain program and each way of watching it, so what else the machine does hits all of
them; the figure is the median over blocks of time(watched) / time(plain block beside it), in CPU time of the training
thread and in wall time. The real agent and aggregator run meanwhile on the other core.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "examples"))

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from transformer import TransformerLM, batches  # noqa: E402

from msmemscope import _native  # noqa: E402
from msmemscope.collect.rank.attach import attach  # noqa: E402
from msmemscope.collect.session import Session  # noqa: E402
from msmemscope.launchers.services import Services  # noqa: E402
from msmemscope.options.declared import Config  # noqa: E402

STEPS_PER_BLOCK = 10
BLOCKS = 20


def import_cost() -> None:
    """Wall time of `python -c 'import msmemscope'` over `python -c pass`, and what it pulls in."""
    plain, with_import = [], []
    for _ in range(15):
        for code, times in (("pass", plain), ("import msmemscope", with_import)):
            began = time.perf_counter()
            subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)
            times.append((time.perf_counter() - began) * 1e3)
    heavy = ["numpy", "pandas", "pyarrow", "zmq", "torch"]
    code = f"import msmemscope, sys; print([name for name in {heavy} if name in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT, capture_output=True, text=True).stdout
    cost = statistics.median(with_import) - statistics.median(plain)
    print(f"import msmemscope: {cost:+.1f} ms over bare Python ({statistics.median(plain):.1f} ms)")
    print(f"heavy modules it imports: {found}")


class Training:
    """The transformer, ready to step."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        torch.set_num_threads(1)
        self.model = TransformerLM()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-3)
        self.data = list(batches(STEPS_PER_BLOCK))

    def block(self) -> tuple[float, float]:
        """Runs STEPS_PER_BLOCK steps; (CPU seconds of this thread, wall seconds)."""
        cpu, wall = time.thread_time(), time.perf_counter()
        for x, y in self.data:
            loss = F.cross_entropy(self.model(x).flatten(0, 1), y.flatten())
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
        return time.thread_time() - cpu, time.perf_counter() - wall


@contextmanager
def recording(stack_depth: int) -> Iterator[None]:
    _native.install_hooks()
    _native.configure(f"python_depth={stack_depth}")
    _native.start()
    try:
        yield
    finally:
        _native.stop()
        _native.remove_hooks()


@contextmanager
def torch_profiler() -> Iterator[None]:
    from torch.profiler import ProfilerActivity, profile

    os.environ["KINETO_LOG_LEVEL"] = "5"
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True):
        yield


def memray_tracker() -> Callable[[], AbstractContextManager[object]] | None:
    try:
        import memray
    except ImportError:
        return None

    def track() -> AbstractContextManager[object]:
        return memray.Tracker(Path(tempfile.mkdtemp()) / "out.bin")

    return track


def step_cost() -> None:
    """The table of ratios."""
    ways: dict[str, Callable[[], AbstractContextManager[object]]] = {
        "hooks installed, not recording": lambda: hooked_but_off(),
        "recording, no stacks": lambda: recording(0),
        "recording, Python stacks of 32": lambda: recording(32),
        "torch.profiler, profile_memory": torch_profiler,
    }
    if (memray := memray_tracker()) is not None:
        ways["memray"] = memray
    else:
        print("memray: not installed here, left out (pip install memray)")
    training = Training()
    plain_ms = min(training.block()[1] for _ in range(8)) / STEPS_PER_BLOCK * 1e3
    ratios: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    events: dict[str, int] = {}
    for _ in range(BLOCKS):
        for name, way in ways.items():
            # A block before each measured one: changing the way (patching, a profiler's start) empties the caches.
            training.block()
            before = training.block()
            with way():
                training.block()
                head = _native.stats()["head"]
                watched = training.block()
                recorded = _native.stats()["head"]
            training.block()
            after = training.block()
            events[name] = (recorded - head) // 96 // STEPS_PER_BLOCK
            ratios[name].append(tuple(2 * w / (b + a) for b, w, a in zip(before, watched, after, strict=True)))  # type: ignore[arg-type]
    print(f"\nstep of the transformer ({plain_ms:.1f} ms plain), {BLOCKS} blocks of {STEPS_PER_BLOCK} steps;", end=" ")
    print("median of watched / plain")
    print(f"{'':34} {'CPU':>7} {'wall':>7}   events per step")
    for name, pairs in ratios.items():
        cpu = statistics.median(cpu for cpu, _ in pairs)
        wall = statistics.median(wall for _, wall in pairs)
        print(f"{name:34} {cpu:6.3f}x {wall:6.3f}x   {events[name] or ''}")
    print(f"lost: {_native.stats()['lost']}")


def hooked_but_off() -> AbstractContextManager[object]:
    _native.install_hooks()
    return nullcontext()


def event_cost() -> None:
    """CPU time of torch.empty(16) and its release: off, recording, recording with a stack of 20 frames."""

    def deep(depth: int, function: Callable[[], float]) -> float:
        return deep(depth - 1, function) if depth else function()

    def loop() -> float:
        empty, count = torch.empty, 20_000
        time.sleep(0.3)  # the agent catches up: what is measured is recording, not a full ring
        for _ in range(5_000):
            empty(16)
        began = time.thread_time()
        for _ in range(count):
            empty(16)
        return (time.thread_time() - began) / count * 1e9

    times: dict[str, list[float]] = {"off": [], "no stack": [], "stack": []}
    _native.install_hooks()
    for _ in range(21):
        times["off"].append(deep(17, loop))
        for name, depth in (("no stack", 0), ("stack", 32)):
            _native.configure(f"python_depth={depth}")
            _native.start()
            times[name].append(deep(17, loop))
            _native.stop()
    off, bare, stack = (statistics.median(times[name]) for name in times)
    print("\none event beyond the hooked call, CPU time, median of 21 loops of 20,000 torch.empty(16)")
    print(f"without stacks                        {(bare - off) / 2:6.0f} ns")
    print(f"MALLOC with a stack of 20 frames      {stack - bare + (bare - off) / 2:6.0f} ns (already interned)")


def main() -> None:
    """All three, or only those named on the command line: import, event, step."""
    wanted = sys.argv[1:] or ["import", "event", "step"]
    if "import" in wanted:
        import_cost()
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
        _native.start()
        torch.empty(1)  # makes the ring
        _native.stop()
        if "event" in wanted:
            event_cost()
        if "step" in wanted:
            step_cost()
    finally:
        services.stop()
        shutil.rmtree(session.directory, ignore_errors=True)
        shutil.rmtree(output, ignore_errors=True)


if __name__ == "__main__":
    main()
