"""What `msmemscope doctor` says of CANN: each library, the cards, and the name that frameworks look for."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from msmemscope.cli import cann
from msmemscope.cli.report_line import Line
from msmemscope.collect.session import HOOK_LIBRARY

FAKE_DCMI = Path(__file__).with_name("fake_dcmi.cpp")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A CANN of version 8.3 with a libdcmi.so and a library that only looks like one."""
    lib = tmp_path / "cann" / "lib64"
    lib.mkdir(parents=True)
    subprocess.run(["c++", "-std=c++17", "-shared", "-fPIC", str(FAKE_DCMI), "-o", str(lib / "libdcmi.so")], check=True)
    (lib / "libprofapi.so").write_text("no library")
    (tmp_path / "cann" / "x86_64").mkdir()
    (tmp_path / "cann" / "x86_64" / "ascend_toolkit_install.info").write_text("package_name=toolkit\nversion=8.3.RC1\n")
    real = tmp_path / HOOK_LIBRARY
    real.write_text("")
    monkeypatch.setattr(cann, "hook_library", lambda: str(real))
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    monkeypatch.setenv("ASCEND_HOME_PATH", str(tmp_path / "cann"))
    return tmp_path / "cann"


def find(lines: list[Line], word: str) -> Line:
    (line,) = [line for line in lines if line.text.startswith(word)]
    return line


def test_a_machine_without_cann_has_one_line() -> None:
    (line,) = cann.lines({})
    assert line.state == "ok"
    (line,) = cann.lines({}, framework=True)
    assert (line.state, line.advice) == ("warn", "source set_env.sh of CANN first")
    (line,) = cann.lines({"ASCEND_HOME_PATH": "/not/there"})
    assert line.state == "missing"
    assert not line.fatal


def test_each_library_is_looked_for(home: Path) -> None:
    lines = list(cann.lines({"ASCEND_HOME_PATH": str(home)}))
    assert find(lines, "CANN 8.3.RC1").state == "ok"
    assert find(lines, "libascend_hal.so").state == "missing"
    assert "LD_LIBRARY_PATH" in find(lines, "libascend_hal.so").advice
    assert find(lines, "libatb.so").state == "warn"  # not every program needs it
    broken = find(lines, "libprofapi.so")
    assert broken.state == "missing"
    assert "file too short" in broken.text or "invalid ELF header" in broken.text
    assert find(lines, f"libdcmi.so ({home}/lib64/libdcmi.so)").state == "ok"
    assert find(lines, "npu:4").text == "npu:4: 100 of 65,536 MiB used, 0 processes"
    assert find(lines, f"{home}/lib64/libms_tools_ext.so is not a file").state == "missing"
    assert find(lines, "the preload library is named").state == "ok"


def test_the_name_of_the_preload_library(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Frameworks resolve links before they compare the name."""
    link = tmp_path / "lib" / HOOK_LIBRARY
    link.parent.mkdir()
    (tmp_path / "real.so").write_text("")
    link.symlink_to(tmp_path / "real.so")
    monkeypatch.setattr(cann, "hook_library", lambda: str(link))
    assert find(list(cann.lines({"ASCEND_HOME_PATH": str(home)})), "the preload library is a link").state == "missing"


@pytest.mark.parametrize(("visible", "state"), [("4,6", "ok"), ("0", "ok"), ("4,,6", "warn"), ("all", "warn")])
def test_visible_devices(home: Path, visible: str, state: str) -> None:
    lines = list(cann.lines({"ASCEND_HOME_PATH": str(home), "ASCEND_RT_VISIBLE_DEVICES": visible}))
    assert find(lines, "ASCEND_RT_VISIBLE_DEVICES").state == state


def test_a_library_that_kills_the_probe(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cann, "_PROBE", "import os; os.abort()")
    lines = list(cann.lines({"ASCEND_HOME_PATH": str(home)}))
    assert find(lines, "the libraries of CANN could not be loaded").state == "missing"


def test_version_of_an_unknown_layout(tmp_path: Path) -> None:
    assert cann.cann_version(tmp_path) == ""
    (tmp_path / "ascend_install.info").write_text("Version = 9.0.0\n")
    assert cann.cann_version(tmp_path) == "9.0.0"
