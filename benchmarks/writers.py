"""What upstream's per-device files cost: rows per second of one core, and how much faster than the writer in Python.

    python benchmarks/writers.py [--events 1000000] [--rounds 3] [--without-python]

The run is the training stream of benchmarks/blocks.py, 8 processes with a card each. Every kind of file is written with
and without call stacks (2,000 of them, 8 frames each), by the native writer and by the one in Python that was there
before, in turn, several rounds; the best of each counts. The old writer is taken from this clone's history.

A rate is rows per second of CPU time on one core, from the stored events to the whole file: reading Parquet, sorting,
following the blocks, sums, texts, writing. "both cores" is the wall clock with a thread per processor.
"""

from __future__ import annotations

import argparse
import importlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import ModuleType

import pyarrow as pa
import pyarrow.parquet as pq
from blocks import make_run

from msmemscope.export import per_device
from msmemscope.export.selection import FORMATS, Selection
from msmemscope.tables.run import Run
from msmemscope.tables.schema import FRAME_SCHEMA, STACK_SCHEMA, STRING_SCHEMA

FRAMES = 500
DEPTH = 8
_OLD = ("dump", "dump_rows", "dump_files")


def add_stacks(path: Path) -> None:
    """What the ids of the stream's stacks stand for: DEPTH frames of a large program."""
    column = pa.concat_arrays([batch["stack_py"] for batch in Run(path).events(columns=["stack_py"])])
    ids = [id for id in column.unique().to_pylist() if id]
    strings = [{"id": n + 1, "text": f"/home/user/project/package_{n % 20}/module_{n}.py"} for n in range(FRAMES)]
    strings += [{"id": FRAMES + n + 1, "text": f"function_number_{n}"} for n in range(FRAMES)]
    frames = [{"id": n + 1, "file": n + 1, "function": FRAMES + n + 1, "line": n, "kind": 0} for n in range(FRAMES)]
    stacks = [
        {"id": id, "kind": 0, "frames": [(7 * n + k) % FRAMES + 1 for k in range(DEPTH)]} for n, id in enumerate(ids)
    ]
    for name, rows, schema in (
        ("strings", strings, STRING_SCHEMA),
        ("frames", frames, FRAME_SCHEMA),
        ("stacks", stacks, STACK_SCHEMA),
    ):
        (path / name).mkdir()
        pq.write_table(pa.Table.from_pylist(rows, schema), path / name / "part-000000.parquet")


def python_writer(folder: Path) -> ModuleType:
    """The module report/dump.py as it was before it was deleted."""

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], capture_output=True, text=True, check=True).stdout

    os.chdir(Path(__file__).parent.parent)
    deleted = git("log", "-1", "--diff-filter=D", "--format=%H", "--", "msmemscope/report/dump.py").strip()
    package = folder / "python_writer"
    package.mkdir()
    for name in _OLD:
        source = git("show", f"{deleted}^:msmemscope/report/{name}.py")
        for other in _OLD:
            source = source.replace(f"from msmemscope.report.{other} import", f"from python_writer.{other} import")
        (package / f"{name}.py").write_text(source)
    sys.path.insert(0, str(folder))
    return importlib.import_module("python_writer.dump")


def timed(module: ModuleType, run: Run, out: Path, file_format: str, depth: int | None) -> tuple[float, float, float]:
    """Rows per second of CPU time and of wall clock, and bytes per row."""
    shutil.rmtree(out, ignore_errors=True)
    selection = getattr(module, "Selection", Selection)(stack_depth=depth)
    cpu, wall = time.process_time(), time.perf_counter()
    report = module.write_dumps(run, out, file_format=file_format, selection=selection)
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    size = sum(file.stat().st_size for file in report.files)
    return report.rows / cpu, report.rows / wall, size / report.rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--without-python", action="store_true")
    options = parser.parse_args()
    processors = os.sched_getaffinity(0)
    with tempfile.TemporaryDirectory() as folder:
        path, out = Path(folder) / "run", Path(folder) / "out"
        make_run(path, options.events, "training")
        add_stacks(path)
        run = Run(path)
        writers = {"native": per_device}
        if not options.without_python:
            try:
                writers["python"] = python_writer(Path(folder))
            except (OSError, subprocess.CalledProcessError) as error:
                print(f"without the writer in Python, which this copy has not in its history: {error}")
        print("| file | bytes per row | native | Python | ratio | both cores |\n|---|---|---|---|---|---|")
        for file_format in FORMATS:
            for name, depth in (("no stacks", 0), ("with stacks", None)):
                best = dict.fromkeys([*writers, "both"], 0.0)
                for _ in range(options.rounds):
                    os.sched_setaffinity(0, {min(processors)})
                    for writer, module in writers.items():
                        rate, _, size = timed(module, run, out, file_format, depth)
                        best[writer] = max(best[writer], rate)
                    os.sched_setaffinity(0, processors)
                    best["both"] = max(best["both"], timed(per_device, run, out, file_format, depth)[1])
                python = f"{best['python'] / 1e6:.2f} M/s" if "python" in best else "-"
                ratio = f"{best['native'] / best['python']:.1f}" if "python" in best else "-"
                print(
                    f"| {file_format}, {name} | {size:.0f} | {best['native'] / 1e6:.2f} M/s | {python} | {ratio} "
                    f"| {best['both'] / 1e6:.2f} M/s |",
                    flush=True,
                )
    return 0


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main())
