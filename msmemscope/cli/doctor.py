"""`msmemscope doctor [PROGRAM]`: what works on this machine, what does not, and what to do about it.

Each check is a function that yields lines; a check that cannot be made says so instead of failing.
"""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import click

from msmemscope.cli import cann
from msmemscope.cli.main import HELP
from msmemscope.cli.output_place import LITTLE_FREE_BYTES
from msmemscope.cli.program import find_program, preload_obstacles
from msmemscope.cli.report_line import Line
from msmemscope.collect.place import RINGS_WANTED, SHARED_MEMORY, choose_place, free_bytes
from msmemscope.collect.session import HOOK_LIBRARY, hook_library
from msmemscope.dependencies import NEEDED, advice, failed_imports
from msmemscope.errors import MemscopeError
from msmemscope.isolated import environment_of_service, isolated_command
from msmemscope.options.settings import DEFAULT_OUTPUT, Config

FRAMEWORKS = ("torch", "torch_npu", "mindspore")
NPU_FRAMEWORKS = ("torch_npu", "mindspore")
MACHINES = ("x86_64", "aarch64")
FEW_FILES = 1024
PROBE_SECONDS = 120
_NAMED = 3  # of the symbols that are missing

# Runs in a process of its own, since it imports torch and patches symbols. Prints one JSON list.
_PROBE = """
import json
from msmemscope import _native
try:
    import torch
except Exception as error:
    if not isinstance(error, ModuleNotFoundError):
        print("torch:", error)
_native.install_hooks()
rows = _native.hooks()
rows += [{"source": source, "lost": text} for source, text in _native.lost()]
print("\\n" + json.dumps(rows))
"""


@click.command(context_settings=HELP)
@click.argument("program", required=False)
def command(program: str | None) -> int:
    """Say what can be recorded on this machine, symbol by symbol, and what to do about the rest.

    With PROGRAM, also whether that program can be watched. The exit status is 0 unless nothing can work at all.
    """
    fatal = False
    sections = {
        "Machine": machine(),
        "Python": python(),
        "Hooks": hooks(),
        "Ascend": cann.lines(framework=any(_version(name) for name in NPU_FRAMEWORKS)),
        "Shared memory": shared_memory(),
        "Preloading": preloading(program),
        "Limits": limits(),
        "Output": output(),
    }
    for title, lines in sections.items():
        click.secho(title, bold=True)
        for line in lines:
            show(line)
            fatal = fatal or line.fatal
    return 4 if fatal else 0


def show(line: Line) -> None:
    colour = {"ok": "green", "warn": "yellow", "missing": "red"}[line.state]
    click.echo(f"  {click.style(f'{line.state:<8}', fg=colour)}{line.text}")
    if line.advice:
        click.echo(f"{'':10}→ {line.advice}")


def machine() -> Iterator[Line]:
    """Operating system, processor and C library: the three the native part is built for."""
    system, processor = platform.system(), platform.machine()
    supported = system == "Linux" and processor in MACHINES
    yield Line(
        "ok" if supported else "missing",
        f"{system} {platform.release()} on {processor}, {os.cpu_count()} processors",
        "" if supported else f"msmemscope runs on Linux, {' or '.join(MACHINES)}",
        fatal=not supported,
    )
    library, number = platform.libc_ver()
    if library == "glibc":
        yield Line("ok", f"{library} {number}")
    else:
        yield Line("missing", f"C library {library or 'unknown'}", "hooks need glibc: use an image with it", fatal=True)


def python() -> Iterator[Line]:
    """The interpreter, what the aggregator needs, and the frameworks whose memory can be recorded."""
    yield Line("ok", f"{platform.python_implementation()} {platform.python_version()} ({sys.executable})")
    failed = failed_imports()
    for name in NEEDED:
        number = _version(name)
        if name in failed:
            yield Line("missing", f"{name} {number}: {failed[name]}", advice(name, failed), fatal=True)
        else:
            yield Line("ok", f"{name} {number}")
    for name in failed.keys() - NEEDED.keys():
        yield Line("missing", f"{name}: {failed[name]}", "pip install --force-reinstall numpy pyarrow", fatal=True)
    found = False
    for name in FRAMEWORKS:
        number = _version(name)
        if number:
            found = True
            yield Line("ok", f"{name} {number}")
    if not found:
        yield Line("warn", "no torch in this Python", "install it, or run msmemscope with the Python of your program")
    torchrun = shutil.which("torchrun")
    if torchrun:
        yield Line("ok", f"torchrun ({torchrun})")


def hooks() -> Iterator[Line]:
    """The native parts, and every symbol that they can intercept in a process that imported torch."""
    if importlib.util.find_spec("msmemscope._native") is None:
        yield Line("missing", "msmemscope._native", "build the package: pip install . in its source tree", fatal=True)
        return
    library = Path(hook_library())
    if library.is_file() and os.access(library, os.R_OK):
        yield Line("ok", f"{HOOK_LIBRARY} ({library})")
    else:
        yield Line("missing", f"{library}", "build the package again: pip install . in its source tree", fatal=True)
    try:
        rows = probe()
    except MemscopeError as error:
        yield Line("missing", "the symbols could not be looked at", str(error), fatal=True)
        return
    symbols = [row for row in rows if "lost" not in row]
    for source in dict.fromkeys(str(row.get("source", "?")) for row in symbols):
        yield from source_lines(source, [row for row in symbols if row.get("source", "?") == source])
    for row in rows:
        if "lost" in row:
            yield Line("warn", f"{row.get('source', '?')}: {row['lost']}")


def probe() -> list[dict[str, Any]]:
    """What `_native` says about each symbol, asked in a process of its own."""
    try:
        done = subprocess.run(
            isolated_command("-c", _PROBE),
            capture_output=True,
            text=True,
            timeout=PROBE_SECONDS,
            check=False,
            env=environment_of_service(),
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise MemscopeError(f"the probe did not answer: {error}") from None
    try:
        rows = json.loads(done.stdout.rstrip().rsplit("\n", 1)[-1])
    except ValueError:
        last = done.stderr.strip().rsplit("\n", 1)[-1] or f"exit status {done.returncode}"
        raise MemscopeError(f"the probe failed: {last}") from None
    return [row for row in rows if isinstance(row, dict)]


def source_lines(source: str, rows: list[dict[str, Any]]) -> Iterator[Line]:
    """The symbols of one source. `tells`: what is recorded through it; `home`: whose libraries have its symbols;
    `defined_in`: the library that has a symbol, none when no loaded one does; `slots`: the places that call it, all of
    them patched. The source says the first two (native/hook/patch.h)."""
    home, tells = (str(rows[0].get(name) or "") for name in ("home", "tells"))
    # Destructors of the C++ library are watched while a structure of ATB's is read, and say nothing about ATB.
    own = [row for row in rows if row.get("defined_in") and "/libstdc++" not in str(row["defined_in"])]
    if home == "CANN" and not own:
        # Libraries of CANN are loaded when a program needs them; without any, a list of their symbols says nothing.
        yield Line("ok", f"{source}: {tells}: watched for, {len(rows)} symbols, no library has them yet")
        return
    reached = any(row.get("defined_in") and int(row.get("slots") or 0) for row in rows)
    # Without CUDA its symbols are rightly missing; an installed torch without c10's is one that we do not know.
    unknown = bool(home) and bool(_version(home))
    if not reached and not unknown:
        what_else = "calls" if own else "has"
        yield Line(
            "warn", f"{source}: {tells} are not recorded here: no loaded library {what_else} its {len(rows)} symbols"
        )
        return
    missing = [str(row.get("symbol", "?")) for row in rows if not row.get("defined_in")]
    if missing:
        few = ", ".join(map(demangled, missing[:_NAMED]))
        more = f" and {len(missing) - _NAMED} more" if len(missing) > _NAMED else ""
        yield Line("missing", f"{source}: {len(missing)} of {len(rows)} symbols in no loaded library: {few}{more}")
    for row in rows:
        if not row.get("defined_in"):
            continue
        name = demangled(str(row.get("symbol", "?")))
        where, slots = row.get("defined_in"), int(row.get("slots") or 0)
        if not slots:
            yield Line("warn", f"{source}: {name} in {where}, called from nowhere")
        else:
            yield Line("ok", f"{source}: {name} in {where}, patched in {slots} place{'s' if slots > 1 else ''}")
    if not reached:
        advice = f"this {home} is not known to this version of msmemscope"
        yield Line("missing", f"{source}: {tells} are not recorded here", advice, fatal=True)


def demangled(symbol: str) -> str:
    """A C++ symbol as its programmers know it, when the machine has c++filt."""
    tool = shutil.which("c++filt") if symbol.startswith("_Z") else None
    if tool is None:
        return symbol
    done = subprocess.run([tool, symbol], capture_output=True, text=True, timeout=10, check=False)
    return done.stdout.strip() or symbol


def shared_memory() -> Iterator[Line]:
    """Where the rings go, and how many of them fit."""
    ring_bytes = Config().ring_mib << 20
    free = free_bytes(SHARED_MEMORY)
    if free < 0:
        yield Line("missing", f"{SHARED_MEMORY} cannot be written", "mount it, or set TMPDIR to a fast disk")
    else:
        facts = os.statvfs(SHARED_MEMORY)
        rings = free // ring_bytes
        text = f"{SHARED_MEMORY}: {_size(facts.f_blocks * facts.f_frsize)}, {_size(free)} free, room for the rings of "
        text += f"{rings:,} processes at their largest ({_size(ring_bytes)}); they begin small and grow on demand"
        few = rings < RINGS_WANTED
        advice = f"fewer than {RINGS_WANTED}: make it larger (docker run --shm-size=1g) or give --ring-size"
        yield Line("warn" if few else "ok", text, advice if few else "")
    try:
        place = choose_place(ring_bytes)
        yield Line("warn" if place.warning else "ok", f"sessions go to {place.path}")
    except OSError as error:
        yield Line("missing", str(error), fatal=True)


def preloading(program: str | None) -> Iterator[Line]:
    """What LD_PRELOAD holds already, and the programs that no library can be preloaded into."""
    present = [entry for entry in os.environ.get("LD_PRELOAD", "").replace(":", " ").split() if entry]
    if not present:
        yield Line("ok", "LD_PRELOAD is empty")
    for entry in present:
        if "/" in entry and not Path(entry).exists():
            yield Line("warn", f"LD_PRELOAD holds {entry}, which is not there", "unset LD_PRELOAD or correct it")
        else:
            yield Line("ok", f"LD_PRELOAD holds {entry}; it is kept, behind ours")
    obstacles = preload_obstacles(sys.executable)
    for obstacle in obstacles:
        yield Line("warn", obstacle, "import msmemscope; msmemscope.start() in the program records without preloading")
    if not obstacles:
        yield Line("ok", "this Python can be preloaded into; setuid and statically linked programs never can")
    if program is None:
        return
    try:
        path = find_program(program)
    except MemscopeError as error:
        yield Line("missing", str(error))
        return
    found = preload_obstacles(path)
    for obstacle in found:
        yield Line("warn", obstacle, "start the real program directly, or call msmemscope.start() in it")
    if not found:
        yield Line("ok", f"{path} can be watched")


def limits() -> Iterator[Line]:
    """Limits of the shell that a recorded program inherits."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    few = files != resource.RLIM_INFINITY and files < FEW_FILES
    yield Line("warn" if few else "ok", f"open files: {_limit(files)}", f"ulimit -n {FEW_FILES}" if few else "")
    ring_bytes = Config().ring_mib << 20
    size, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    if size != resource.RLIM_INFINITY:
        small = size < ring_bytes
        advice = "ulimit -f unlimited" + (": a ring is larger, nothing can be recorded" if small else "")
        yield Line("missing" if small else "warn", f"file size: {_size(size)}", advice, fatal=small)
    space, _ = resource.getrlimit(resource.RLIMIT_AS)
    if space != resource.RLIM_INFINITY:
        advice = f"ulimit -v unlimited: each process maps {_size(2 * ring_bytes)} more"
        yield Line("warn", f"address space: {_size(space)}", advice)


def output() -> Iterator[Line]:
    """The default output directory, or the place where it would be made."""
    path = Path(DEFAULT_OUTPUT).resolve()
    place = path if path.is_dir() else path.parent
    free = free_bytes(str(place))
    if free < 0:
        yield Line("warn", f"{place} cannot be written", "choose another place with --output-path")
    elif free < LITTLE_FREE_BYTES:
        yield Line("warn", f"{place}: {_size(free)} free", "choose another place with --output-path")
    else:
        yield Line("ok", f"{place}: {_size(free)} free")
    yield Line(
        "ok",
        "the verdict is printed on stderr when the program has ended, and stands in RUN/summary.txt; while it runs: "
        "msmemscope summary RUN. Leaks are told by steps: an optimizer's, or those of msmemscope.step()",
    )


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def _size(count: int) -> str:
    return f"{count / (1 << 30):.1f} GiB" if count >= 1 << 30 else f"{count >> 20} MiB"


def _limit(count: int) -> str:
    return "unlimited" if count == resource.RLIM_INFINITY else str(count)
