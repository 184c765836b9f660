"""What files and runs of up to 100 million rows cost: the largest resident set, time, disk.

    python benchmarks/scale.py                                  # csv of 1, 2 and 4 million rows, every way
    python benchmarks/scale.py --rows 25000000,50000000,100000000 --directory /large/disk
    python benchmarks/scale.py --kind db --ways import
    python benchmarks/scale.py --per-step 400                   # 25 times as many steps

The file is that of upstream_file.py. Each way is a command or a call in a process of its own:

    import       `msmemscope import FILE -o RUN`, with its verdict and all outputs
    analyze      `msmemscope analyze RUN` of the run that import made
    sql          open_run(RUN).sql(), of QUERIES
    leaks        check_leaks() of HAL and PTA
    inefficient  check_inefficient(), with its marked copy
    compare      `msmemscope --compare` with another file of as many rows, of whose operators 1 % are not the same

peak RSS: of all processes of the way together, looked at every 50 ms, or the largest of one that the kernel tells,
whichever is more. spilled: the most that lay in files without a name or in temporary directories. made: what is left.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from upstream_file import write_csv, write_db

MIB = 1 << 20
PAGE = os.sysconf("SC_PAGE_SIZE")
WAYS = ("import", "analyze", "sql", "leaks", "inefficient", "compare")
QUERIES = (
    "SELECT kind, pool, count(*) AS n, sum(size) AS bytes FROM events GROUP BY kind, pool ORDER BY n DESC",
    "SELECT stack_py, count(*) AS n, sum(size) AS bytes FROM events WHERE kind = 1 GROUP BY stack_py ORDER BY n DESC",
    "SELECT step, max(used) AS peak FROM events GROUP BY step ORDER BY peak DESC LIMIT 5",
    "SELECT * FROM events ORDER BY size DESC, ts LIMIT 10",
    "SELECT count(DISTINCT ptr) FROM events",
)


@dataclass
class Cost:
    """peak, spilled: bytes; cpu, wall: seconds."""

    peak: int = 0
    spilled: int = 0
    cpu: float = 0.0
    wall: float = 0.0


def measured(command: list[str], temporary: Path) -> Cost:
    """Of a command, which must succeed. temporary: its directory for temporary files."""
    cost, ended = Cost(), threading.Event()
    began = time.monotonic()
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(command, stdout=said, stderr=said, env={**os.environ, "TMPDIR": str(temporary)})
        looking = threading.Thread(target=_look, args=(process.pid, temporary, cost, ended))
        looking.start()
        _, status, use = os.wait4(process.pid, 0)
        ended.set()
        looking.join()
        process.returncode = os.waitstatus_to_exitcode(status)
        said.seek(0)
        if process.returncode:
            raise SystemExit(f"{' '.join(command)} ended with {process.returncode}\n{said.read().decode()[-2000:]}")
    cost.peak = max(cost.peak, use.ru_maxrss * 1024)
    cost.cpu, cost.wall = use.ru_utime + use.ru_stime, time.monotonic() - began
    return cost


def _look(pid: int, temporary: Path, cost: Cost, ended: threading.Event) -> None:
    while not ended.wait(0.05):
        several = _tree(pid)
        cost.peak = max(cost.peak, sum(map(_resident, several)))
        cost.spilled = max(cost.spilled, sum(map(_unnamed, several)) + size_of(temporary))


def _tree(pid: int) -> list[int]:
    found = [pid]
    for one in found:
        try:
            for task in Path(f"/proc/{one}/task").iterdir():
                found += map(int, (task / "children").read_text().split())
        except OSError:
            continue
    return found


def _resident(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE
    except OSError:
        return 0


def _unnamed(pid: int) -> int:
    """Bytes of the files that it has open and that have no name any more."""
    total = 0
    try:
        for one in Path(f"/proc/{pid}/fd").iterdir():
            facts = one.stat()
            if facts.st_nlink == 0 and facts.st_size:
                total += facts.st_blocks * 512
    except OSError:
        pass
    return total


def size_of(directory: Path) -> int:
    total = 0
    for folder, _, names in os.walk(directory):
        for name in names:
            try:
                total += Path(folder, name).lstat().st_blocks * 512
            except OSError:
                continue
    return total


def _command(way: str, file: Path, run: Path, other: Path, output: Path) -> list[str]:
    program = [sys.executable, "-m", "msmemscope"]
    if way == "import":
        return [*program, "import", str(file), "-o", str(run)]
    if way == "analyze":
        return [*program, "analyze", str(run)]
    if way == "compare":
        return [*program, "--compare", f"--input-path={file},{other}", "--level", "op", f"--output={output}"]
    call = {
        "sql": f"run = msmemscope.open_run({str(run)!r})\nfor one in {QUERIES!r}: run.sql(one)",
        "leaks": f"msmemscope.check_leaks({str(file)!r}, 'epoch', 1, pools=('HAL', 'PTA'))",
        "inefficient": f"msmemscope.check_inefficient({str(file)!r})",
    }
    return [sys.executable, "-c", f"import msmemscope\n{call[way]}"]


def _measure(folder: Path, rows: int, options: argparse.Namespace) -> None:
    file = folder / f"memscope_dump_1.{options.kind}"
    run, other, output, temporary = (folder / name for name in ("run", "memscope_dump_2.csv", "output", "temporary"))
    temporary.mkdir()
    count = (write_csv if options.kind == "csv" else write_db)(file, rows, options.per_step)
    size = file.stat().st_size
    print(f"{count:,} rows of {options.kind}, {size / MIB:,.0f} MiB ({size / count:.0f} B a row)", flush=True)
    for way in options.ways:
        if way in ("analyze", "sql") and not run.is_dir():
            measured(_command("import", file, run, other, output), temporary)
        if way == "compare":
            shutil.rmtree(run, ignore_errors=True)
            write_csv(other, rows, options.per_step, edits=0.01)
        before = size_of(folder)
        cost = measured(_command(way, file, run, other, output), temporary)
        made = size_of(folder) - before
        for one in folder.glob("*.inefficient.*"):
            one.unlink()
        print(
            f"  {way:12} peak RSS {cost.peak / MIB:6,.0f} MiB   {count / cost.cpu / 1e6:5.2f} M rows/s of CPU time   "
            f"{1e9 * cost.cpu / count:6,.0f} ns a row   wall {cost.wall:6,.0f} s   "
            f"spilled {cost.spilled / count:4.0f} B a row   made {made / count:4.0f} B a row",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default="1000000,2000000,4000000", help="of each file, with commas between them")
    parser.add_argument("--per-step", type=int, default=10_000, help="rows of a step")
    parser.add_argument("--kind", default="csv", choices=["csv", "db"])
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=WAYS)
    parser.add_argument("--directory", type=Path, help="where the files are made: some 250 B a row")
    options = parser.parse_args()
    print(f"load {os.getloadavg()[0]:.1f}, {options.per_step:,} rows a step")
    for rows in map(int, options.rows.split(",")):
        with tempfile.TemporaryDirectory(dir=options.directory) as folder:
            _measure(Path(folder), rows, options)


if __name__ == "__main__":
    main()
