"""Check what the test programs state about themselves, without the tool that they test.

``python tests/job/verify_truth.py [--show] [program ...]`` runs each program (all of them when none is named) with
every operator observed: a dispatch mode notes each new storage with its size and the program's line, and holds a weak
reference to it. At each step boundary the storages that are still alive are counted by line and by the step that made
them. Unlike a walk over the garbage collector's objects this also sees what only an autograd graph keeps.

A truth holds when, at the last boundary, the marked lines kept exactly the stated bytes from each step, on the stated
ranks, and no other line keeps more and more: the bytes of a line that are at least two steps old must not exceed, in
the last third of the run, what they were before. A clean program is one where that is so for every line.

What is not seen: storages made outside operators (shared memory of DataLoader, torch.load), and workers that are
spawned rather than forked.
"""

from __future__ import annotations

import argparse
import collections
import functools
import json
import multiprocessing
import os
import runpy
import subprocess
import sys
import tempfile
import threading
import types
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from truth import Leak, Truth, read_truth

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = [
    *sorted((ROOT / "tests/job/programs").glob("*/*.py")),
    ROOT / "examples/leaky_ddp.py",
    ROOT / "examples/clean_ddp.py",
]
# A block younger than this at a boundary may just be a local variable that the next iteration overwrites.
OLD_STEPS = 2

Snapshot = list[tuple[str, int, int, int]]  # file, line, step of birth, bytes alive


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--show", action="store_true", help="print the bytes kept per line and step")
    parser.add_argument("--record", help=argparse.SUPPRESS)
    parser.add_argument("programs", nargs="*", type=Path)
    arguments = parser.parse_args()
    if arguments.record:
        _record(Path(arguments.record), arguments.programs[0])
        return 0
    wrong = 0
    for program in arguments.programs or PROGRAMS:
        truth = read_truth(program)
        problems = verify(truth, arguments.show)
        wrong += bool(problems)
        print(f"{'WRONG' if problems else 'holds'}  {program.parent.name}/{program.name}", flush=True)
        for problem in problems:
            print(f"       {problem}", flush=True)
    return 1 if wrong else 0


def verify(truth: Truth, show: bool = False) -> list[str]:
    """Run the program observed; return one sentence for each way in which its truth does not hold."""
    with tempfile.TemporaryDirectory() as directory:
        command = [sys.executable]
        if truth.nproc > 1:
            command += ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={truth.nproc}"]
        command += [__file__, "--record", directory, str(truth.program)]
        done = subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True)
        if done.returncode:
            return [f"exit status {done.returncode}: {done.stderr[:2000]}"]
        records = [json.loads(path.read_text()) for path in sorted(Path(directory).iterdir())]
    problems = []
    main_ranks = {record["rank"] for record in records if not record["worker"]}
    if main_ranks != set(range(truth.nproc)):
        problems.append(f"ranks {main_ranks} reported")
    for rank in sorted(main_ranks):
        mine = [record for record in records if record["rank"] == rank]
        steps = [record["steps"] for record in mine if not record["worker"]]
        if steps != [truth.steps]:
            problems.append(f"rank {rank}: {steps} steps instead of {truth.steps}")
        problems += [f"rank {rank}: {problem}" for problem in _judge(truth, rank, _together(mine), show)]
    return problems


def _together(records: list[dict[str, Any]]) -> list[Snapshot]:
    """Lay a rank's workers over its main process, step by step; a worker's snapshots carry the step of its parent."""
    steps = next(record["steps"] for record in records if not record["worker"])
    together: list[Snapshot] = [[] for _ in range(steps)]
    for record in records:
        latest: Snapshot = []
        at = dict(record["snapshots"])
        for step, snapshot in enumerate(together):
            latest = at.get(step, latest)
            snapshot.extend((file, line, birth, size) for file, line, birth, size in latest)
    return together


def _judge(truth: Truth, rank: int, snapshots: list[Snapshot], show: bool) -> list[str]:
    problems = []
    last = len(snapshots) - 1
    claimed: set[tuple[str, int]] = set()
    lines = {(file, line) for at in snapshots for file, line, _, _ in at}
    if show:
        _show(rank, snapshots, lines)
    for leak in truth.leaks:
        if rank not in leak.ranks:
            continue
        kept = {at for at in lines if _belongs(truth, leak, at)}
        claimed |= kept
        births = range(max(leak.first_step, 1), last - OLD_STEPS + 1)
        rows = [
            (line, birth, size)
            for file, line, birth, size in snapshots[last]
            if (file, line) in kept and birth in births
        ]
        per_step = sum(size for _, _, size in rows) / len(births)
        if abs(per_step - leak.bytes_per_step) > leak.tolerance * leak.bytes_per_step:
            problems.append(f"line {leak.line}: {per_step} bytes per step kept, not {leak.bytes_per_step}")
        if not any(line in leak.lines for line, _, _ in rows):
            problems.append(f"line {leak.line}: nothing of it is kept")
        if any(birth < leak.first_step for file, line, birth, _ in snapshots[last] if (file, line) in kept and birth):
            problems.append(f"line {leak.line}: kept before step {leak.first_step}")
    for at in sorted(lines - claimed):
        old = [
            sum(size for file, line, birth, size in snapshot if (file, line) == at and birth <= step - OLD_STEPS)
            for step, snapshot in enumerate(snapshots)
        ]
        cut = len(old) * 2 // 3
        if max(old[cut:]) > max(old[:cut]):
            problems.append(f"{at[0]}:{at[1]} keeps growing: {old}")
    return problems


def _belongs(truth: Truth, leak: Leak, at: tuple[str, int]) -> bool:
    file, line = at
    return file in leak.absorbs or (file == truth.program.name and line in leak.kept)


def _show(rank: int, snapshots: list[Snapshot], lines: set[tuple[str, int]]) -> None:
    for at in sorted(lines):
        births: dict[int, int] = collections.Counter()
        for file, line, birth, size in snapshots[-1]:
            if (file, line) == at:
                births[birth] += size
        spans: list[list[int]] = []  # first step, last step, bytes of each
        for birth, size in sorted(births.items()):
            if spans and spans[-1][1:] == [birth - 1, size]:
                spans[-1][1] = birth
            else:
                spans.append([birth, birth, size])
        if spans:
            alive = ", ".join(
                f"{size} from step {a}" if a == b else f"{size} from each of {a}-{b}" for a, b, size in spans
            )
            print(f"       rank {rank} {at[0]}:{at[1]} {alive}")


def _record(directory: Path, program: Path) -> None:
    """Run `program` as __main__ in this process and write what stayed alive at each of its steps."""
    import torch
    from torch.multiprocessing.reductions import StorageWeakRef
    from torch.optim.optimizer import register_optimizer_step_post_hook
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    # Counted by both sources, since which one counts is known only when the program has ended.
    counts = {source: multiprocessing.Value("i", 0) for source in ("api", "optimizer")}
    alive: dict[int, tuple[Any, str, int, int, dict[str, int]]] = {}
    snapshots: dict[str, list[tuple[int, Snapshot]]] = {source: [] for source in counts}
    users = {program.resolve().parent, ROOT / "examples"}
    lock = threading.RLock()
    path_of = functools.cache(lambda name: Path(name).resolve())

    def user_line() -> tuple[str, int]:
        frame = sys._getframe(2)
        while frame is not None:
            path = path_of(frame.f_code.co_filename)
            if path.parent in users:
                return path.name, frame.f_lineno
            frame = frame.f_back  # type: ignore[assignment]
        return "outside the program", 0

    def storages(values: Any) -> dict[int, Any]:
        tensors = [leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor)]
        return {s._cdata: s for s in (t.untyped_storage() for t in tensors if t.layout == torch.strided)}

    class Observe(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            # lift_fresh hands out the very storage that torch.tensor() has just made.
            given = {} if "lift_fresh" in func.name() else storages((args, kwargs))
            result = func(*args, **(kwargs or {}))
            for key, storage in storages(result).items():
                with lock:
                    if key not in given and (key not in alive or alive[key][0].expired()):
                        births = {source: count.value for source, count in counts.items()}
                        alive[key] = (StorageWeakRef(storage), *user_line(), storage.nbytes(), births)
            return result

    def snapshot(source: str) -> None:
        with lock:
            for key in [key for key, block in alive.items() if block[0].expired()]:
                del alive[key]
            rows: dict[tuple[str, int, int], int] = collections.Counter()
            for _, file, line, size, births in alive.values():
                rows[file, line, births[source]] += size
            snapshots[source].append((counts[source].value, [(*key, size) for key, size in rows.items()]))

    def boundary(source: str) -> None:
        snapshot(source)
        counts[source].value += 1

    def write(worker: bool) -> None:
        source = "api" if counts["api"].value else "optimizer"
        record = {
            "rank": int(os.environ.get("RANK", "0")),
            "worker": worker,
            "steps": counts[source].value,
            "snapshots": snapshots[source],
        }
        (directory / f"{os.getpid()}.json").write_text(json.dumps(record))

    stand_in = types.ModuleType("msmemscope")
    stand_in.step = lambda: boundary("api")  # type: ignore[attr-defined]
    sys.modules["msmemscope"] = stand_in
    register_optimizer_step_post_hook(lambda *_: boundary("optimizer"))

    # A dispatch mode belongs to one thread, so each new thread enters its own.
    run = threading.Thread.run

    def observed_run(self: threading.Thread) -> None:
        with Observe():
            run(self)

    threading.Thread.run = observed_run  # type: ignore[method-assign]

    # A forked worker inherits the mode; it has no steps of its own, so it takes a snapshot whenever it fetches a batch.
    from torch.utils.data._utils import fetch, worker

    worker_loop = worker._worker_loop
    fetch_batch = fetch._MapDatasetFetcher.fetch

    def observed_fetch(self: Any, indices: Any) -> Any:
        if torch.utils.data.get_worker_info() is not None:
            for source in counts:
                snapshot(source)
        return fetch_batch(self, indices)

    def observed_loop(*arguments: Any) -> None:
        alive.clear()
        for rows in snapshots.values():
            rows.clear()
        worker_loop(*arguments)
        write(worker=True)

    fetch._MapDatasetFetcher.fetch = observed_fetch
    worker._worker_loop = observed_loop

    sys.argv = [str(program)]
    sys.path.insert(0, str(program.resolve().parent))
    with Observe():
        runpy.run_path(str(program), run_name="__main__")
    write(worker=False)


if __name__ == "__main__":
    sys.exit(main())
