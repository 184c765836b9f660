"""`msmemscope simulate-npu`: what is built and when, the environment, and the table of knobs in the documentation."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from patience import LIMIT_S

from msmemscope.cli import simulate_npu
from msmemscope.cli.main import main

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-m", "msmemscope", "simulate-npu"]

pytestmark = pytest.mark.xdist_group("the simulator is built once")
builds_it = pytest.mark.long

# Stands for cmake: notes each call, and makes a cann directory when it is asked to build.
CMAKE = """#!/bin/sh
echo "$1" >> {log}
[ -e {fail} ] && {{ echo "driver.h:7: error: no such thing"; exit 1; }}
if [ "$1" = --build ]; then sleep 0.2; mkdir -p "$2/cann/lib64"; fi
"""

ASK = """
import ctypes, os, mstx
acl = ctypes.CDLL("libascendcl.so")
count, free, total = ctypes.c_uint32(), ctypes.c_size_t(), ctypes.c_size_t()
assert acl.aclrtGetDeviceCount(ctypes.byref(count)) == 0
assert acl.aclrtSetDevice(2) == 0
assert acl.aclrtGetMemInfo(0, ctypes.byref(free), ctypes.byref(total)) == 0
acl.aclrtGetSocName.restype = ctypes.c_char_p
mstx.mark("here")
mstx.range_end(mstx.range_start("there"))
print(os.getpid(), count.value, total.value, acl.aclrtGetSocName().decode(), mstx.get_tool_id())
"""


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One cache for all tests that need the real simulator: it is built once."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def build(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A place where cmake is the script above; its log."""
    tools = tmp_path / "tools"
    tools.mkdir()
    log = tmp_path / "calls"
    (tools / "cmake").write_text(CMAKE.format(log=log, fail=tmp_path / "fail"))
    (tools / "cmake").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(simulate_npu, "installed_torch", lambda: None)
    return log


def variables(cache: Path) -> dict[str, str]:
    """The environment of a command line of this tree, with that cache and no cards chosen."""
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    kept = {name: value for name, value in os.environ.items() if name != "NPUSIM_STATE"}
    return {**kept, "XDG_CACHE_HOME": str(cache), "PYTHONPATH": path}


def real(cache: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *words], capture_output=True, text=True, timeout=LIMIT_S, env=variables(cache), check=False
    )


def needs_tools() -> None:
    missing = [tool for tool in ("cmake", "c++") if shutil.which(tool) is None]
    if missing:
        pytest.skip(f"{missing[0]} is missing")


@builds_it
def test_a_program_runs_in_this_process_on_devices_as_asked_for(cache: Path) -> None:
    needs_tools()
    words = ["--devices", "3", "--hbm", "1.5", "--soc", "Ascend910_9391", "--", sys.executable, "-c", ASK]
    with subprocess.Popen([*COMMAND, *words], stdout=subprocess.PIPE, text=True, env=variables(cache)) as process:
        output, _ = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0
    assert output.split() == [str(process.pid), "3", str(3 << 29), "Ascend910_9391", "0"]


@builds_it
def test_the_exit_status_is_the_programs_and_nothing_is_built_twice(cache: Path) -> None:
    needs_tools()
    assert real(cache, "--", "true").returncode == 0
    done = real(cache, "--", "sh", "-c", "exit 7")
    assert done.returncode == 7
    assert done.stderr == ""


@builds_it
def test_a_shell_can_take_the_environment_and_the_search_paths_keep_what_they_held(cache: Path) -> None:
    needs_tools()
    script = 'eval "$("$@" --devices 5 --print-environment)" && echo "$NPUSIM_DEVICES|$LD_LIBRARY_PATH|$NPUSIM_STATE"'
    environment = {**variables(cache), "LD_LIBRARY_PATH": "/opt/lib"}
    done = subprocess.run(
        ["sh", "-c", script, "sh", *COMMAND],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        env=environment,
        check=True,
    )
    devices, libraries, state = done.stdout.strip().split("|")
    assert devices == "5"
    assert re.fullmatch(rf"{re.escape(str(cache))}/msmemscope/simulator/[0-9a-f]{{16}}/cann/lib64:/opt/lib", libraries)
    assert "/run-" in state


@builds_it
def test_each_invocation_has_cards_of_its_own(cache: Path) -> None:
    needs_tools()
    states = {real(cache, "--", "sh", "-c", "echo $NPUSIM_STATE").stdout for _ in range(2)}
    assert len(states) == 2


def test_two_calls_at_once_build_once(build: Path, tmp_path: Path) -> None:
    program = "from msmemscope.cli import simulate_npu as s; s.installed_torch = lambda: None; print(s.built_cann())"
    environment = variables(tmp_path / "cache")
    (tmp_path / "cache/msmemscope/simulator/.building-broken-off").mkdir(parents=True)
    both = [
        subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, env=environment)
        for _ in range(2)
    ]
    answers = {process.communicate(timeout=LIMIT_S)[0] for process in both}
    assert len(answers) == 1
    assert build.read_text().split() == ["-S", "--build"]
    left = sorted(path.name for path in (tmp_path / "cache/msmemscope/simulator").iterdir())
    assert len(left) == 2  # the build and the lock


def test_a_build_that_fails_says_why_in_one_line_and_leaves_nothing(
    build: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "fail").touch()
    assert main(["simulate-npu", "--", "true"]) == 4
    lines = capsys.readouterr().err.splitlines()
    assert "driver.h:7: error: no such thing" in lines[-1]
    assert not list((tmp_path / "cache").rglob("cann"))
    log = Path(lines[-1].rsplit(" ", 1)[-1])
    assert log.read_text().startswith("driver.h:7")
    log.unlink()


@pytest.mark.parametrize(("missing", "advice"), [("cmake", "pip install"), ("c++", "apt-get install g++")])
def test_a_missing_tool_is_named_with_what_to_install(
    missing: str, advice: str, build: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    empty = tmp_path / "empty"
    empty.mkdir()
    (empty / "true").symlink_to(shutil.which("true") or "/bin/true")
    if missing != "cmake":
        shutil.copy(tmp_path / "tools/cmake", empty / "cmake")
    monkeypatch.setenv("PATH", str(empty))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(empty))
    assert main(["simulate-npu", "--", "true"]) == 4
    error = capsys.readouterr().err
    assert advice in error
    assert error.count("\n") == 1
    assert not build.exists()


@pytest.mark.parametrize("words", [[], ["--devices", "0", "--", "true"], ["--hbm", "0", "true"], ["--frob", "true"]])
def test_a_wrong_line_is_refused_before_anything_is_built(
    words: list[str], build: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["simulate-npu", *words]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert not build.exists()


def test_a_program_that_is_not_there_is_named(build: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate-npu", "--", "no-such-program"]) == 127
    assert "no-such-program" in capsys.readouterr().err
    assert not build.exists()


def test_other_sources_or_another_torch_are_another_build(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    sources = tmp_path / "simulator"
    shutil.copytree(simulate_npu.SOURCES.resolve(), sources)
    before = simulate_npu.content_key(None)
    monkeypatch.setattr(simulate_npu, "SOURCES", sources)
    assert simulate_npu.content_key(None) == before
    (sources / "python" / "mstx.py").write_text("")  # not built
    assert simulate_npu.content_key(None) == before
    assert simulate_npu.content_key(tmp_path) != before
    with (sources / "knobs.inc").open("a") as file:
        file.write("// changed\n")
    assert simulate_npu.content_key(None) != before


def test_leftovers_of_the_dead_are_removed_and_what_is_in_use_is_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(simulate_npu.os, "access", lambda path, mode: False)
    monkeypatch.setattr(simulate_npu.tempfile, "gettempdir", lambda: str(tmp_path))
    mine = simulate_npu.state_directory(os.getpid())
    dead, used = mine.with_name("run-999999999-1"), mine.with_name("run-999999998-1")
    for state in (mine, dead, used):
        state.mkdir(parents=True)
        (state / "cards").touch()
    with (used / "cards").open() as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        assert simulate_npu.state_directory(os.getpid()) == mine
        assert sorted(path.name for path in mine.parent.iterdir()) == sorted([mine.name, used.name])


def test_the_documentation_has_every_knob_as_it_is() -> None:
    declared = re.findall(r'^KNOB\((\w+), "(.*?)", "(.*?)"\)', (ROOT / "simulator/knobs.inc").read_text(), re.M | re.S)
    assert declared
    shown = [
        [cell.strip() for cell in line.strip("|\n").split("|")]
        for line in (ROOT / "docs/simulator.md").read_text().splitlines()
        if line.startswith("| `NPUSIM_")
    ]
    meaning = {name: re.sub(r'"\s+"', "", text) for name, _, text in declared}
    assert shown == [[f"`NPUSIM_{name}`", f"`{value}`" if value else "", meaning[name]] for name, value, _ in declared]
