"""`msmemscope simulate-npu [options] -- program args…`: runs a program on simulated Ascend devices.

In: the sources of the simulated CANN (msmemscope/simulator) and a compiler. Out: the program, in this process, with
an environment in which they look like an installed CANN. What is built lies in the user's cache, one directory per
content of the sources, and is built once.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import click

from msmemscope.cli.main import HELP
from msmemscope.cli.messages import say
from msmemscope.cli.program import find_program
from msmemscope.errors import MemscopeError, UsageError
from msmemscope.isolated import environment_of_service

SOURCES = Path(__file__).resolve().parents[1] / "simulator"
MOST_DEVICES = 16
DEFAULT_SOC = "Ascend910B2"
_PARTIAL = ".building-"
_COMPILERS = ("c++", "g++", "clang++")
_ADVICE = "pip install 'msmemscope[simulator]'"


@click.command(context_settings={**HELP, "ignore_unknown_options": False, "allow_interspersed_args": False})
@click.option("--devices", type=click.IntRange(1, MOST_DEVICES), default=2, show_default=True, help="How many devices.")
@click.option(
    "--hbm", type=click.FloatRange(min=0, min_open=True), default=64.0, show_default=True, metavar="GiB",
    help="Memory of each device.",
)  # fmt: skip
@click.option("--soc", default=DEFAULT_SOC, show_default=True, metavar="NAME", help="Which chip they say they are.")
@click.option("--cann-memory", is_flag=True, help="The parts of CANN take driver memory for themselves, as real ones.")
@click.option("--print-environment", is_flag=True, help="Print what a shell can eval instead of running a program.")
@click.argument("program", nargs=-1, type=click.UNPROCESSED)
def command(
    devices: int, hbm: float, soc: str, cann_memory: bool, print_environment: bool, program: tuple[str, ...]
) -> int:
    """Run PROGRAM on simulated Ascend devices: real torch_npu, no NPU.

    Device memory is host memory, operators are computed by torch's CPU kernels, collectives go through shared memory.
    The first call builds the simulator with the machine's C++ compiler.
    """
    if bool(program) == print_environment:
        raise UsageError("name a program, or give --print-environment; see: msmemscope simulate-npu --help")
    path = find_program(program[0]) if program else ""
    cann = built_cann()
    owner = os.getppid() if print_environment else os.getpid()
    variables = environment(cann, state_directory(owner), devices, hbm, soc, cann_memory)
    if print_environment:
        for name, value in variables.items():
            click.echo(f"export {name}={shlex.quote(value)}")
        return 0
    sys.stdout.flush()
    try:
        os.execve(path, list(program), {**os.environ, **variables})
    except OSError as error:
        raise MemscopeError(f"cannot run {path}: {error.strerror}") from None


def environment(cann: Path, state: Path, devices: int, hbm_gib: float, soc: str, cann_memory: bool) -> dict[str, str]:
    """The variables that make `cann` the installed CANN; search paths keep what they hold, behind ours."""
    return {
        "ASCEND_HOME_PATH": str(cann),
        "ASCEND_OPP_PATH": str(cann / "opp"),
        "LD_LIBRARY_PATH": _in_front(cann / "lib64", "LD_LIBRARY_PATH"),
        "PYTHONPATH": _in_front(SOURCES.resolve() / "python", "PYTHONPATH"),  # has mstx.py
        "NPUSIM_DEVICES": str(devices),
        "NPUSIM_HBM_MB": str(max(1, round(hbm_gib * 1024))),
        "NPUSIM_SOC": soc,
        "NPUSIM_CANN_MEMORY": str(int(cann_memory)),
        "NPUSIM_STATE": os.environ.get("NPUSIM_STATE") or str(state),
    }


def _in_front(path: Path, variable: str) -> str:
    present = [entry for entry in os.environ.get(variable, "").split(os.pathsep) if entry and entry != str(path)]
    return os.pathsep.join([str(path), *present])


# ---- what is built ----


def built_cann() -> Path:
    """The directory to be ASCEND_HOME_PATH, built now if it is not there. Two calls at once build once."""
    if not (SOURCES / "CMakeLists.txt").is_file():
        raise MemscopeError(f"the simulator's sources are not in {SOURCES}: install the package again")
    torch = installed_torch()
    place = cache_directory() / f"{content_key(torch)}" / "cann"
    if place.is_dir():
        return place
    try:
        place.parent.parent.mkdir(parents=True, exist_ok=True)
        with _only_one(place.parent.parent / "lock"):
            if not place.is_dir():
                _build(place, torch)
    except OSError as error:
        raise MemscopeError(f"cannot build the simulator in {place.parent}: {error.strerror or error}") from None
    return place


def cache_directory() -> Path:
    """Where built simulators lie."""
    chosen = os.environ.get("XDG_CACHE_HOME", "")
    base = Path(chosen) if chosen.startswith("/") else Path.home() / ".cache"
    return base / "msmemscope" / "simulator"


def installed_torch() -> Path | None:
    """The directory of a torch that torch_npu can use, found without importing it; None: build no operators."""
    if any(importlib.util.find_spec(name) is None for name in ("torch", "torch_npu")):
        return None
    spec = importlib.util.find_spec("torch")
    places = list(spec.submodule_search_locations or ()) if spec else []
    return Path(places[0]) if places and (Path(places[0]) / "lib" / "libtorch_cpu.so").is_file() else None


def content_key(torch: Path | None) -> str:
    """Names a build: the same sources, the same torch and the same compiler give the same key."""
    digest = hashlib.sha256()
    for path in sorted(SOURCES.resolve().rglob("*")):
        if path.is_file() and path.suffix not in (".py", ".pyc", ".md"):
            digest.update(f"{path.relative_to(SOURCES.resolve())}\0".encode())
            digest.update(path.read_bytes())
    try:
        number = version("torch") if torch else ""
    except PackageNotFoundError:
        number = "unknown"
    digest.update(f"{torch}\0{number}\0{os.environ.get('CXX', '')}\0{sysconfig.get_platform()}".encode())
    return digest.hexdigest()[:16]


@contextmanager
def _only_one(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _build(place: Path, torch: Path | None) -> None:
    """Built beside its place and renamed when it is complete: a build that is broken off leaves nothing behind that
    looks like one, and the next one removes it. Under the lock."""
    for left in place.parent.parent.glob(f"{_PARTIAL}*"):
        shutil.rmtree(left, ignore_errors=True)
    cmake = _tool("cmake")
    if cmake is None:
        raise MemscopeError(f"cmake is missing, which builds the simulator: {_ADVICE}")
    if not os.environ.get("CXX") and not any(map(shutil.which, _COMPILERS)):
        raise MemscopeError("a C++17 compiler is missing, which builds the simulator: apt-get install g++")
    ninja = _tool("ninja")
    if ninja is None and shutil.which("make") is None:
        raise MemscopeError(f"neither ninja nor make is there, one of which builds the simulator: {_ADVICE}")
    say(
        "info",
        f"building the simulated CANN {'with operators (a minute or more)' if torch else 'without operators'}, once",
    )
    with tempfile.TemporaryDirectory(prefix=_PARTIAL, dir=place.parent.parent) as name:
        build = Path(name)
        configure = [cmake, "-S", str(SOURCES.resolve()), "-B", str(build / "build"), "-DCMAKE_CXX_FLAGS=-O1"]
        if torch is not None:
            configure.append(f"-DSIMULATOR_TORCH={torch}")
        configure += ["-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={ninja}"] if ninja else ["-G", "Unix Makefiles"]
        _run(configure)
        _run([cmake, "--build", str(build / "build"), "--parallel"])
        place.parent.mkdir(exist_ok=True)
        (build / "build" / "cann").rename(place)


def _tool(name: str) -> str | None:
    """A build tool from PATH, or one that pip installed beside this Python."""
    return shutil.which(name) or shutil.which(name, path=sysconfig.get_path("scripts"))


def _run(words: list[str]) -> None:
    # pip's cmake is a script of Python, and so within reach of the user's modules too.
    done = subprocess.run(
        words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, env=environment_of_service()
    )
    if done.returncode == 0:
        return
    handle, log = tempfile.mkstemp(prefix="msmemscope-simulator-", suffix=".log")
    with open(handle, "w") as file:
        file.write(done.stdout)
    lines = [line.strip() for line in done.stdout.splitlines() if "rror" in line]
    why = lines[0] if lines else f"{Path(words[0]).name} ended with {done.returncode}"
    raise MemscopeError(f"the simulator could not be built: {why}; all of it: {log}")


# ---- the cards ----


def state_directory(owner: int) -> Path:
    """A directory for the cards of one invocation, named after process `owner`; leftovers of dead ones are removed."""
    shared = Path("/dev/shm")
    base = (shared if os.access(shared, os.W_OK) else Path(tempfile.gettempdir())) / f"npusim-{os.geteuid()}"
    for old in base.glob("run-*"):
        _remove_if_left(old)
    return base / f"run-{owner}-{_start_time(owner)}"


def _remove_if_left(state: Path) -> None:
    _, pid, start = state.name.split("-", 2)
    if pid.isdigit() and _start_time(int(pid)) == start:
        return
    try:
        # Every process that uses the cards holds a shared lock on their file.
        with (state / "cards").open() as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(state, ignore_errors=True)
    except FileNotFoundError:
        shutil.rmtree(state, ignore_errors=True)
    except OSError:
        return  # in use


def _start_time(pid: int) -> str:
    """What tells a process from a later one of the same number; empty when there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""
