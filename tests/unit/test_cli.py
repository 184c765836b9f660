"""The command line from outside: statuses, one line per error, no traceback, and whose argument a word is.

The supervisor is replaced by a recorder here, so that nothing runs; tests/job runs real programs.
"""

from __future__ import annotations

import errno
import json
import os
import pty
import shutil
import subprocess
import sys
import time
import types
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from compilers import c_compiler
from patience import LIMIT_S

from msmemscope import progress
from msmemscope.cli import doctor, output_place, watched
from msmemscope.cli.main import main
from msmemscope.cli.program import find_program, preload_obstacles
from msmemscope.cli.subcommands import SUBCOMMANDS
from msmemscope.collect.output_directory import make_output_directory
from msmemscope.collect.place import Place, choose_place
from msmemscope.errors import MemscopeError, UsageError
from msmemscope.options.declared import OPTIONS
from msmemscope.options.settings import Config


class Supervisor:
    """Stands in for msmemscope.launchers.supervise."""

    def __init__(self) -> None:
        self.config = Config()
        self.argv: list[str] | None = None
        self.status = 0

    def run(self, config: Config, argv: list[str]) -> int:
        self.config, self.argv = config, argv
        return self.status


@pytest.fixture
def supervisor(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Supervisor:
    recorder = Supervisor()
    module = types.ModuleType("msmemscope.launchers.supervise")
    module.run = recorder.run  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(watched, "choose_place", lambda _: Place(str(tmp_path), 1 << 40))  # Docker's has 64 MiB
    monkeypatch.chdir(tmp_path)
    return recorder


@pytest.fixture
def fails(capfd: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Runs a line that must fail with `status`, and returns the one line it says."""

    def check(status: int, *words: str) -> str:
        assert main(words) == status
        out, err = capfd.readouterr()
        assert out == ""
        assert err.startswith("[msmemscope] Error: ")
        assert err.count("\n") == 1
        return err

    return check


def program(path: Path, mode: int = 0o755) -> Path:
    path.write_text("#!/bin/sh\n")
    path.chmod(mode)
    return path


# --- Whose word is it ---------------------------------------------------------------------------------------------


def test_options_after_the_program_belong_to_the_program(supervisor: Supervisor) -> None:
    assert main(["--format", "db", "sh", "--format", "csv", "-v", "--", "--nonsense"]) == 0
    assert supervisor.argv == ["sh", "--format", "csv", "-v", "--", "--nonsense"]
    assert supervisor.config.format == "db"
    assert supervisor.config.log_level == "info"


@pytest.mark.parametrize(
    ("words", "argv", "taken"),
    [
        (["sh", "x.sh", "--log-level=info", "--level=0,1"], ["sh", "x.sh"], {"level": ("op", "kernel")}),
        (["sh", "-v", "--analysis=oom:5", "--device=npu"], ["sh", "-v"], {"oom_top": 5, "device": ("npu",)}),
        (["sh", "--device=npu", "--steps=5"], ["sh", "--device=npu", "--steps=5"], {"device": ("auto",)}),
        (["sh", "--level=1"], ["sh", "--level=1"], {"level": ("op",)}),  # a compressor's, as well
        (["sh", "--analysis=mine"], ["sh", "--analysis=mine"], {"analysis": ("leaks",)}),
        (["sh", "--events=alloc,free", "x"], ["sh", "--events=alloc,free", "x"], {}),
        (["--", "sh", "--analysis=none"], ["sh", "--analysis=none"], {"analysis": ("leaks",)}),
        (["--analysis=leaks", "sh", "--analysis=none"], ["sh"], {"analysis": ()}),
    ],
)
def test_options_at_the_end_are_taken_only_when_they_can_hardly_be_the_programs(
    supervisor: Supervisor,
    capfd: pytest.CaptureFixture[str],
    words: list[str],
    argv: list[str],
    taken: dict[str, object],
) -> None:
    assert main(words) == 0
    assert supervisor.argv == argv
    assert {name: getattr(supervisor.config, name) for name in taken} == taken
    assert ("taken as msmemscope's own" in capfd.readouterr().err) == (words[-1] not in argv)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("sh x.sh --watch=op0,op1", "msmemscope --watch=op0,op1 sh x.sh"),  # upstream's own documented form
        ("sh train.py --device=npu --steps=1,2", "msmemscope --device=npu --steps=1,2 sh train.py"),
        ("sh x.sh --level 0,1 --analysis leaks", "msmemscope --level 0,1 --analysis leaks sh x.sh"),
        ("sh train.py --device npu --steps 100", ""),
        ("sh train.py --analysis mine", ""),
        ("sh train.py --analysis leaks file", ""),
        ("sh train.py --device=npu --lr=0.1", ""),
        ("sh train.py --steps=1000000,x", ""),
        ("sh train.py --watch=a,b file", ""),
        ("-- sh x.sh --watch=op0,op1", ""),
        ("sh x.sh", ""),
    ],
)
def test_options_behind_the_program_that_might_be_ours_are_told(
    supervisor: Supervisor, capfd: pytest.CaptureFixture[str], line: str, told: str
) -> None:
    main(line.split())

    assert supervisor.argv == [word for word in line.split() if word != "--"]
    said = capfd.readouterr().err
    assert (f"write: {told};" in said) if told else "behind the program" not in said


def test_two_dashes_end_the_options(supervisor: Supervisor) -> None:
    assert main(["--steps=2", "--", "sh", "-c", "x"]) == 0
    assert supervisor.argv == ["sh", "-c", "x"]
    assert supervisor.config.steps == (2,)


@pytest.mark.parametrize("name", SUBCOMMANDS)
@pytest.mark.parametrize("before", [["--"], ["-v"], ["--steps", "1", "--"]])
def test_a_subcommand_never_hides_a_program(
    supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, before: list[str]
) -> None:
    program(tmp_path / name)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main([*before, name, "RUN"]) == 0
    assert supervisor.argv == [name, "RUN"]


def test_a_subcommand_that_is_not_first_is_hinted_at(
    fails: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    assert "first word" in fails(127, "-v", "summary", "RUN")


def test_the_status_of_the_program_is_ours(supervisor: Supervisor) -> None:
    for status in (0, 1, 77, 137):
        supervisor.status = status
        assert main(["sh"]) == status


# --- Errors -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "no program"),
        (["--"], "no program"),
        (["--nonsense", "sh"], "--nonsense"),
        (["-z", "sh"], "-z"),
        (["--steps"], "--steps"),
        (["--steps", "0", "sh"], "--steps takes"),
        (["--steps=1,2,3,4,5,6", "sh"], "--steps takes"),
        (["--quiet=yes", "sh"], "--quiet"),
        (["--compare", "sh"], "--input-path"),
        (["-i", "/a,/b", "sh"], "--compare"),
        (["--compare", "-i", "/etc/passwd"], "exactly two"),
        (["--load-api-env"], "must be sourced"),
        (["--unload-api-env"], "must be sourced"),
        (["-o", " ", "sh"], "--output-path"),
        (["analyze"], "RUN"),
        (["analyze", "a", "b"], "msmemscope analyze --help"),
        (["summary", "a", "--rank", "-1"], "--rank"),
        (["summary", "a", "--rank", "x"], "--rank"),
        (["export", "a"], "--format"),
        (["export", "a", "--format", "xml"], "--format"),
        (["doctor", "a", "b"], "msmemscope doctor --help"),
    ],
)
def test_wrong_usage_is_status_2(
    supervisor: Supervisor, fails: Callable[..., str], words: list[str], says: str
) -> None:
    assert says in fails(2, *words)
    assert supervisor.argv is None


def test_a_program_that_is_not_there(supervisor: Supervisor, fails: Callable[..., str], tmp_path: Path) -> None:
    assert "nonsense-program" in fails(127, "nonsense-program")
    assert "./nonsense" in fails(127, "./nonsense")
    assert "is a directory" in fails(126, str(tmp_path))
    assert "chmod +x" in fails(126, str(program(tmp_path / "plain", 0o644)))
    (tmp_path / "train.py").write_text("")
    assert "msmemscope python train.py" in fails(127, "train.py")
    assert "msmemscope python ./train.py" in fails(126, "./train.py")
    assert supervisor.argv is None


def test_output_directories_that_cannot_be_used(
    supervisor: Supervisor, fails: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "file"
    file.write_text("")
    assert "is a file" in fails(2, "-o", str(file), "sh")
    assert "through a file" in fails(2, "-o", str(file / "below"), "sh")
    assert "cannot be used" in fails(2, "-o", "/proc/nonsense", "sh")

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(output_place.os, "write", full)
    assert "is full" in fails(2, "-o", str(tmp_path / "out"), "sh")
    assert not (tmp_path / "out").exists()
    assert supervisor.argv is None


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become somebody else")
@pytest.mark.parametrize("mode", [0o500, 0o300, 0o000])
def test_an_output_directory_without_permission(tmp_path: Path, mode: int) -> None:
    for parent in tmp_path.parents:
        if parent.stat().st_uid == os.geteuid() and parent != Path("/") and not parent.stat().st_mode & 0o001:
            parent.chmod(parent.stat().st_mode | 0o055)
    tmp_path.chmod(0o755)
    out = tmp_path / "out"
    out.mkdir()
    os.chown(out, 65534, 65534)
    out.chmod(mode)
    child = os.fork()
    if child == 0:  # the rest of the test, as nobody
        os.setgid(65534)
        os.setuid(65534)
        try:
            output_place.prepare_output(str(out))
        except UsageError as error:
            os._exit(0 if "cannot be used" in str(error) else 2)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_directory_that_others_can_write_is_doubtful(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    assert any("written by others" in warning for warning in output_place.prepare_output(str(tmp_path)))


def test_a_missing_output_directory_is_tried_and_left_missing(tmp_path: Path) -> None:
    """Whatever is recorded makes it, with its parents; a program that records nothing leaves nothing."""
    output_place.prepare_output(str(tmp_path / "a" / "b"))
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "a").mkdir()
    output_place.prepare_output(str(tmp_path / "a"))
    assert list(tmp_path.rglob("*")) == [tmp_path / "a"]


def test_commands_that_start_together_do_not_take_each_others_output_directory_away(tmp_path: Path) -> None:
    """Each makes it for a trial, and removes what it made."""
    out = tmp_path / "a" / "b"

    def starts(*, as_run: bool) -> None:
        for _ in range(300):
            if as_run:
                make_output_directory(out / "run", 0o700)
                (out / "run").rmdir()
            else:
                output_place.prepare_output(str(out))

    children = []
    for as_run in (False, False, False, True):
        child = os.fork()
        if child == 0:
            status = 1
            with suppress(OSError, UsageError):
                starts(as_run=as_run)
                status = 0
            os._exit(status)
        children.append(child)
    assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [0] * 4


def test_a_run_that_is_none_is_status_3(fails: Callable[..., str], tmp_path: Path) -> None:
    commands = (["analyze"], ["summary"], ["export", "--format", "csv"])
    for command in commands:
        assert "is not there" in fails(3, *command, str(tmp_path / "absent"))
        assert "no run.json" in fails(3, *command, str(tmp_path))
        assert "a file" in fails(3, *command, __file__)
    run_directory = tmp_path / "run_20260101000000_abcdef"
    run_directory.mkdir()
    for text in ("", "{", "[]"):
        (run_directory / "run.json").write_text(text)
        for command in commands:
            assert "damaged" in fails(3, *command, str(run_directory))
    assert run_directory.name in fails(3, "summary", str(tmp_path))


def test_files_to_compare_that_are_none_are_status_3(fails: Callable[..., str], tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to("/etc/passwd")
    assert "cannot read" in fails(3, "--compare", "-i", f"/etc/passwd,{tmp_path}/absent")
    assert "no column 'ID'" in fails(3, "--compare", "-i", "/etc/passwd,/etc/group")
    assert "neither a regular file nor a directory" in fails(3, "--compare", "-i", f"/etc/passwd,{link}")
    (tmp_path / "empty").mkdir()
    assert "no run" in fails(3, "--compare", "-i", f"{tmp_path}/empty,/etc/passwd")


@pytest.mark.usefixtures("supervisor")
def test_a_fault_of_ours_is_status_4_without_a_traceback(
    fails: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> int:
        raise RuntimeError("one\ntwo")

    monkeypatch.setattr(sys.modules["msmemscope.launchers.supervise"], "run", broken)
    assert "RuntimeError: one two" in fails(4, "sh")


@pytest.mark.usefixtures("supervisor")
def test_ctrl_c_before_the_program_runs_is_one_line(fails: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(sys.modules["msmemscope.launchers.supervise"], "run", interrupted)
    assert "interrupted" in fails(130, "sh")


def test_as_a_process_it_says_the_same() -> None:
    done = subprocess.run([sys.executable, "-m", "msmemscope", "--steps", "0", "sh"], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    done = subprocess.run([sys.executable, "-m", "msmemscope", "--help"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert "--call-stack" in done.stdout
    assert "doctor" in done.stdout


def test_a_reader_that_leaves_is_no_error() -> None:
    done = subprocess.run(
        ["bash", "-c", '"$0" -m msmemscope --help | true; echo ${PIPESTATUS[0]}', sys.executable],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
    assert done.stdout.strip() in ("0", "141")


# --- What is said -------------------------------------------------------------------------------------------------


def test_version(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["-V"]) == 0
    assert "msmemscope version" in capfd.readouterr().out


@pytest.mark.parametrize(
    ("words", "new"),
    [(["--output", "out"], "--output-path"), (["--data-format", "db"], "--format"), (["--level", "0"], "op")],
)
def test_deprecated_names_work_with_a_notice(
    supervisor: Supervisor, capfd: pytest.CaptureFixture[str], words: list[str], new: str
) -> None:
    assert main([*words, "sh"]) == 0
    out, err = capfd.readouterr()
    assert out == ""
    assert "deprecated" in err
    assert new in err
    assert main(["-q", *words, "sh"]) == 0
    assert "deprecated" not in capfd.readouterr().err
    assert supervisor.argv == ["sh"]


def test_the_help_page_says_what_is_not_in_this_version(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    page = " ".join(capfd.readouterr().out.split())
    for option in (option for option in OPTIONS if option.later):
        words = [word for word in option.later if word]
        ending = f" Default: {option.default}." if option.default else ""
        said = " ".join(f"{option.help}{ending} Not in this version{': ' * bool(words)}{', '.join(words)}.".split())
        assert said.replace("- ", "-") in page.replace("- ", "-"), option.name  # lines are broken at hyphens


@pytest.mark.usefixtures("supervisor")
def test_a_plain_run_says_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["-o", "out", "sh"]) == 0
    assert capfd.readouterr() == ("", "")


def test_small_shared_memory_is_said_and_something_else_is_taken(tmp_path: Path) -> None:
    small = choose_place(1 << 60, shared_memory="/dev/shm", disks=(str(tmp_path),))
    assert small.path == str(tmp_path)
    assert "--ring-size" in small.warning
    absent = choose_place(1, shared_memory=str(tmp_path / "absent"), disks=(str(tmp_path),))
    assert absent.path == str(tmp_path)
    assert "cannot be written" in absent.warning
    assert choose_place(1, shared_memory=str(tmp_path)).warning == ""
    with pytest.raises(OSError, match="TMPDIR"):
        choose_place(1, shared_memory="/nonsense", disks=("/nonsense2",))


def test_the_warning_about_shared_memory_reaches_the_user(
    supervisor: Supervisor, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(watched, "choose_place", lambda size: choose_place(size, str(tmp_path / "absent")))
    assert main(["sh"]) == 0
    assert "cannot be written" in capfd.readouterr().err
    assert supervisor.argv == ["sh"]


def test_a_progress_bar_is_for_terminals_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "PATIENCE_S", 0.0)
    monkeypatch.setenv("TERM", "xterm")  # a dumb one is shown nothing that is drawn again and again
    with progress.progress_bar() as report:
        assert report is None  # pytest captures stderr, which is no terminal then
    leader, follower = pty.openpty()
    with os.fdopen(follower, "w") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        with progress.progress_bar() as report:
            assert report is not None
            report("sorting", 1, 2)
            report.clear()
            report("writing", 2, 2)  # as of a run that does not say how many events it has
    shown = b""
    deadline = time.monotonic() + LIMIT_S
    while b"writing" not in shown and time.monotonic() < deadline:
        shown += os.read(leader, 65536)
    os.close(leader)
    assert b"writing" in shown


# --- The program --------------------------------------------------------------------------------------------------


def test_programs_that_cannot_be_watched(tmp_path: Path) -> None:
    assert preload_obstacles(sys.executable) == []
    assert preload_obstacles(str(program(tmp_path / "script"))) == []
    compiler = c_compiler("a static program")
    (tmp_path / "static.c").write_text("int main(void) { return 0; }")
    linked = subprocess.run([compiler, "-static", "-o", tmp_path / "static", tmp_path / "static.c"], check=False)
    if linked.returncode != 0:
        pytest.skip("no static C library on this machine")
    assert "statically linked" in preload_obstacles(str(tmp_path / "static"))[0]
    script = tmp_path / "by_static"
    script.write_text(f"#!{tmp_path}/static\n")
    assert "statically linked" in preload_obstacles(str(script))[0]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to make a program of another user")
def test_a_setuid_program_of_another_user(tmp_path: Path) -> None:
    copy = tmp_path / "true"
    shutil.copy("/bin/true", copy)
    os.chown(copy, 65534, 65534)
    copy.chmod(0o4755)
    assert "setuid" in preload_obstacles(str(copy))[0]


def test_a_program_of_another_processor(tmp_path: Path) -> None:
    foreign = bytearray(Path(sys.executable).resolve().read_bytes()[:4096])
    foreign[18:20] = (243).to_bytes(2, "little")  # RISC-V
    (tmp_path / "foreign").write_bytes(foreign)
    assert "is for machine 243" in preload_obstacles(str(tmp_path / "foreign"))[0]


def test_a_program_is_found_as_the_shell_finds_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    path = program(tmp_path / "tool")
    assert find_program("tool") == str(path)
    path.chmod(0o600)
    with pytest.raises(MemscopeError) as caught:
        find_program("tool")
    assert caught.value.exit_status == 126


# --- doctor -------------------------------------------------------------------------------------------------------


def rows(slots: int) -> list[dict[str, object]]:
    c10 = {"source": "c10", "home": "torch", "tells": "allocations of torch"}
    cudart = {"source": "cudart", "home": "", "tells": "allocations from the CUDA driver"}
    atb = {"source": "atb", "home": "CANN", "tells": "operators and tensors of ATB"}
    hal = {"source": "hal", "home": "CANN", "tells": "memory of the Ascend driver"}
    return [
        {**c10, "symbol": "alloc_a", "defined_in": "/lib/libc10.so" if slots else None, "slots": slots},
        {**c10, "symbol": "alloc_b", "defined_in": "/lib/libc10.so" if slots else None, "slots": 0},
        *({**cudart, "symbol": f"cuda{n}", "defined_in": None, "slots": 0} for n in range(5)),
        {**atb, "symbol": "Execute", "defined_in": None, "slots": 0},
        {**atb, "symbol": "~basic_string", "defined_in": "/lib/libstdc++.so.6", "slots": 0},
        {**hal, "symbol": "halMemAlloc", "defined_in": None, "slots": 0},
        {**hal, "symbol": "halMemFree", "defined_in": None, "slots": 0},
        {"source": "msprof", "lost": "libprofapi.so refused our callbacks"},
    ]


@pytest.fixture
def quick_doctor(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A doctor that finds the package built and a torch installed, and does not start one."""
    (tmp_path / doctor.HOOK_LIBRARY).write_text("")
    monkeypatch.setattr(doctor, "hook_library", lambda: str(tmp_path / doctor.HOOK_LIBRARY))
    monkeypatch.setattr(doctor.importlib.util, "find_spec", lambda _name: object())
    monkeypatch.setattr(doctor, "version", lambda _name: "1.0")


@pytest.mark.usefixtures("quick_doctor")
def test_doctor_names_every_symbol(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(doctor, "probe", lambda: rows(2))
    assert main(["doctor", "sh"]) == 0
    out = capfd.readouterr().out
    lines = [line.split() for line in out.splitlines()]
    assert ["ok", "c10:", "alloc_a", "in", "/lib/libc10.so,", "patched", "in", "2", "places"] in lines
    assert ["warn", "c10:", "alloc_b", "in", "/lib/libc10.so,", "called", "from", "nowhere"] in lines
    assert "cudart: allocations from the CUDA driver are not recorded here: no loaded library has its 5 symbols" in out
    assert "atb: operators and tensors of ATB: watched for, 2 symbols, no library has them yet" in out
    assert len([line for line in out.splitlines() if "cuda" in line or "atb" in line]) == 2
    assert "hal: memory of the Ascend driver: watched for, 2 symbols, no library has them yet" in out
    assert ["warn", "msprof:", "libprofapi.so", "refused", "our", "callbacks"] in lines
    assert "processes at their largest (16 MiB); they begin small" in out
    for word in ("/dev/shm", "LD_PRELOAD", "open files", "torch 1.0", "can be watched", "ASCEND_HOME_PATH"):
        assert word in out


def test_doctor_names_a_few_of_the_symbols_that_a_library_lacks() -> None:
    one = {"source": "cudart", "symbol": "cudaFree", "defined_in": "/lib/libcudart.so", "slots": 1}
    lacking = [{**one, "symbol": f"cuda{n}", "defined_in": None, "slots": 0} for n in range(9)]
    lines = [line.text for line in doctor.source_lines("cudart", [one, *lacking])]
    assert lines == [
        "cudart: 9 of 10 symbols in no loaded library: cuda0, cuda1, cuda2 and 6 more",
        "cudart: cudaFree in /lib/libcudart.so, patched in 1 place",
    ]


@pytest.mark.usefixtures("quick_doctor")
def test_doctor_fails_when_nothing_can_work(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(doctor, "probe", lambda: rows(0))
    assert main(["doctor"]) == 4
    assert "this torch is not known" in capfd.readouterr().out
    monkeypatch.setattr(doctor.importlib.util, "find_spec", lambda _name: None)
    assert main(["doctor"]) == 4
    assert "pip install ." in capfd.readouterr().out


def test_doctor_survives_a_probe_that_crashes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_PROBE", "import os; os.abort()")
    with pytest.raises(MemscopeError, match="probe failed"):
        doctor.probe()
    monkeypatch.setattr(doctor, "_PROBE", "print('noise'); print('[{\"symbol\": \"a\"}]')")
    assert doctor.probe() == [{"symbol": "a"}]


# --- The commands on a run ----------------------------------------------------------------------------------------


class Report:
    """Stands in for msmemscope.report.outputs, .upstream_files and .console."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, object]] = []

    def write_outputs(
        self, path: Path, *, config: Config, progress: object, tell: Callable[[str], None]
    ) -> types.SimpleNamespace:
        assert progress is None
        self.calls.append((path.name, config.format))
        tell("the verdict")
        return types.SimpleNamespace(notes=["a note"], skipped=[])

    def export_upstream_files(self, path: Path, config: Config, *, progress: object) -> types.SimpleNamespace:
        assert progress is None
        assert config.format_given
        self.calls.append((path.name, config.format))
        dump = path / "device_cpu" / "dump" / f"memscope_dump_1.{config.format}"
        return types.SimpleNamespace(notes=["a note"], files=[dump])

    def summary_text(self, path: Path, *, rank: int | None, pid: int | None, progress: object) -> str:
        assert progress is None
        return f"{path.name} {rank} {pid}"


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> tuple[str, Report]:
    report = Report()
    for name, attribute in (
        ("outputs", "write_outputs"),
        ("upstream_files", "export_upstream_files"),
        ("console", "summary_text"),
    ):
        module = types.ModuleType(f"msmemscope.report.{name}")
        setattr(module, attribute, getattr(report, attribute))
        monkeypatch.setitem(sys.modules, module.__name__, module)
    path = tmp_path / "run_20260101000000_abcdef"
    path.mkdir()
    info = {"schema": 1, "finished": True, "config": Config(format="csv").as_dict()}
    (path / "run.json").write_text(json.dumps(info))
    return str(path), report


def test_analyze_keeps_the_runs_own_options_and_says_what_came_out(
    recorded: tuple[str, Report], capfd: pytest.CaptureFixture[str]
) -> None:
    path, report = recorded
    assert main(["analyze", path]) == 0
    printed = capfd.readouterr()
    assert printed.out == "the verdict\n"
    assert "a note" in printed.err
    assert main(["export", path, "--format", "db"]) == 0
    assert capfd.readouterr().out == f"{path}/device_cpu/dump/memscope_dump_1.db\n"
    assert report.calls == [(Path(path).name, "csv"), (Path(path).name, "db")]


def test_an_unfinished_run_is_analysed_with_a_warning(
    recorded: tuple[str, Report], capfd: pytest.CaptureFixture[str]
) -> None:
    path, report = recorded
    (Path(path) / "run.json").write_text('{"finished": false}')
    assert main(["analyze", path]) == 0
    assert "not finished" in capfd.readouterr().err
    assert main(["export", path, "--format", "csv"]) == 0
    assert "not finished" in capfd.readouterr().err
    assert len(report.calls) == 2


def test_summary_is_for_a_run_or_a_rank_and_goes_to_stdout(
    recorded: tuple[str, Report], capfd: pytest.CaptureFixture[str]
) -> None:
    path, _report = recorded
    assert main(["summary", path]) == 0
    assert main(["summary", "--rank", "3", path]) == 0
    assert main(["summary", "--pid", "47", path]) == 0
    name = Path(path).name
    assert capfd.readouterr() == (f"{name} None None\n{name} 3 None\n{name} None 47\n", "")
