"""What recording costs in instructions, which no other work of the machine changes: a training step and one operator.

``python benchmarks/instructions.py``, with valgrind and a C compiler (apt-get install valgrind gcc). One process under
callgrind, the real agent and aggregator beside it: STEPS steps of examples/transformer.py on one rank and one thread,
and CALLS of ``add_`` on 16 elements, first as the plain program, then with each way of watching it. Printed are
instructions of all threads, and their ratio to the plain program's. Valgrind's processor has no AVX-512, so kernels of
torch take more of them there than elsewhere, and what is watched is a smaller part.
"""

from __future__ import annotations

import ctypes
import gc
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

STEPS, CALLS = 2, 1000
COUNTER = """
#include <valgrind/callgrind.h>
void begin(void) { CALLGRIND_START_INSTRUMENTATION; CALLGRIND_ZERO_STATS; }
void end(const char* name) { CALLGRIND_DUMP_STATS_AT(name); CALLGRIND_STOP_INSTRUMENTATION; }
"""


def count(library: str) -> None:
    """The process under callgrind."""
    sys.argv = [sys.argv[0]]
    import operators as ways  # of this directory

    torch, native = ways.torch, ways._native
    counter = ctypes.CDLL(library)
    output = tempfile.mkdtemp(prefix="msmemscope-bench-")
    config = ways.Config(output_path=output, collect_mode="deferred", ring_mib=64)
    session = ways.Session.create(config, sys.argv, mode="launched")
    services = ways.Services(session)
    try:
        training = ways.Training("cpu")
        training.data = training.data[:STEPS]
        tensor = torch.ones(16)

        def calls() -> None:
            with torch.no_grad():
                for _ in range(CALLS):
                    tensor.add_(1.0)

        def measure(name: str, way: Callable[[], AbstractContextManager[object]]) -> None:
            for unit, work in (("step", training.block), ("call", calls)):
                with way():
                    for _ in range(2):  # tables, plans and texts are there the second time
                        work()
                    gc.collect()
                    gc.disable()
                    counter.begin()
                    work()
                    counter.end(f"{unit}:{name}".encode())
                    gc.enable()

        both = ways.OPERATORS | ways.ACCESSES
        training.block()
        measure("plain", nullcontext)
        ways.attach(session)
        native.configure("devices=cpu")
        measure("hooks, never recorded", nullcontext)
        native.observe_operators(ways.torch_ext.build(ways.torch_ext.torch_of(torch)) or "")
        measure("hooks and observer, never recorded", nullcontext)
        measure("memory", lambda: ways.recording(0))
        measure("memory and operators", lambda: ways.recording(ways.OPERATORS))
        measure("memory, operators and accesses", lambda: ways.recording(both))
        measure("the same, no Python stacks", lambda: ways.recording(both, 0))
        measure("not recording any more", nullcontext)
    finally:
        services.stop()
        shutil.rmtree(session.directory, ignore_errors=True)
        shutil.rmtree(output, ignore_errors=True)


def main() -> None:
    if shutil.which("valgrind") is None:
        print("valgrind is not installed: left out (apt-get install valgrind)")
        return
    with tempfile.TemporaryDirectory() as directory:
        source, library = Path(directory, "counter.c"), Path(directory, "counter.so")
        source.write_text(COUNTER)
        subprocess.run(["cc", "-O1", "-fPIC", "-shared", source, "-o", library], check=True)
        command = ["valgrind", "--tool=callgrind", "--instr-atstart=no", f"--callgrind-out-file={directory}/out"]
        command += [sys.executable, __file__, str(library)]
        done = subprocess.run(
            command,
            env=os.environ | {"PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        counts: dict[str, dict[str, int]] = {"step": {}, "call": {}}
        for path in sorted(Path(directory).glob("out.*"), key=lambda one: int(one.suffix[1:])):
            text = path.read_text(errors="replace")
            trigger = re.search(r"^desc: Trigger: Client Request: (step|call):(.*)$", text, re.MULTILINE)
            total = re.search(r"^totals: (\d+)", text, re.MULTILINE)
            if trigger is not None and total is not None:
                counts[trigger[1]][trigger[2]] = int(total[1])
        if done.returncode != 0 or not counts["call"]:
            print(done.stderr[-4000:], file=sys.stderr)
            raise SystemExit(1)
    print(f"{'':40} {'a step':>14} {'':>7} {'a call of add_':>15} {'':>7}")
    for name in counts["step"]:
        step, call = counts["step"][name] / STEPS, counts["call"][name] / CALLS
        first_step, first_call = counts["step"]["plain"] / STEPS, counts["call"]["plain"] / CALLS
        print(f"{name:40} {step:14,.0f} {step / first_step:6.4f}x {call:15,.1f} {call / first_call:6.4f}x")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        count(sys.argv[1])
    else:
        main()
