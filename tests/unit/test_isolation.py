"""The user's modules stay hers: no process of ours imports one in place of the standard library's."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from patience import LIMIT_S

from msmemscope.isolated import USER_PATH_VARIABLE, environment_of_service, isolated_command


@pytest.fixture
def poisoned(tmp_path: Path) -> Path:
    """A directory with a module of every name in the standard library, which ends whoever imports it."""
    directory = tmp_path / "hers"
    directory.mkdir()
    for name in sys.stdlib_module_names:
        text = f"raise SystemExit('the {name}.py beside the script was imported')\n"
        if name == "email":
            (directory / name).mkdir()
            (directory / name / "__init__.py").write_text(text)
        else:
            (directory / f"{name}.py").write_text(text)
    return directory


def run(words: list[str], directory: Path, **environment: str) -> str:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("MSMEMSCOPE_")}
    done = subprocess.run(
        words, cwd=directory, env={**kept, **environment}, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert done.returncode == 0, done.stderr
    # That it waits for the outputs is said where that takes longer than a second.
    ours = [line for line in done.stderr.splitlines() if "[msmemscope]" in line and "] writing " not in line]
    assert not ours, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    "module", ["msmemscope.aggregate.server", "msmemscope.collect.agent.loop", "msmemscope.launchers.node"]
)
def test_a_service_imports_nothing_of_the_users(poisoned: Path, module: str) -> None:
    code = f"import {module}, msmemscope.report.outputs, email.parser, platform, queue, select; print(select.__file__)"
    variables = environment_of_service()
    variables[USER_PATH_VARIABLE] = os.pathsep.join([str(poisoned), variables[USER_PATH_VARIABLE]])

    done = subprocess.run(
        isolated_command("-c", code), cwd=poisoned, env=variables, capture_output=True, text=True, check=True
    )

    assert str(poisoned) not in done.stdout


def test_what_python_is_told_for_the_program_does_not_reach_a_service(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PYTHONPATH", "PYTHONWARNINGS", "PYTHONINSPECT", "LD_PRELOAD", "MSMEMSCOPE_SESSION"):
        monkeypatch.setenv(name, "error")
    monkeypatch.setenv("PYTHONHOME", sys.base_prefix)

    variables = environment_of_service()

    assert [name for name, value in variables.items() if value == "error"] == []
    assert variables["PYTHONHOME"] == sys.base_prefix
    monkeypatch.setenv("PYTHONHOME", "/where/another/lives")
    assert "PYTHONHOME" not in environment_of_service()


def test_a_package_that_only_the_users_path_has_is_found_there_behind_all_else(tmp_path: Path) -> None:
    for name in ("mindspore", "numpy"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("")
    (tmp_path / "select.py").write_text("raise SystemExit('hers')")
    code = "import mindspore, numpy, select, sys; print(mindspore.__file__, numpy.__version__, sys.path[-1])"

    printed = run(isolated_command("-c", code), tmp_path, **{USER_PATH_VARIABLE: str(tmp_path)})

    found, number, last = printed.split()
    assert found == f"{tmp_path}/mindspore/__init__.py"
    assert number[0].isdigit()  # not the one without a version
    assert last == str(tmp_path)


def test_the_package_of_a_service_is_the_one_that_started_it(tmp_path: Path) -> None:
    """Another installation of ours on the path would not understand the session."""
    (tmp_path / "msmemscope").mkdir()
    (tmp_path / "msmemscope" / "__init__.py").write_text("raise SystemExit('another')")
    import msmemscope

    printed = run(
        isolated_command("-c", "import msmemscope.tables.run; print(msmemscope.__file__)"),
        tmp_path,
        **{USER_PATH_VARIABLE: str(tmp_path)},
    )

    assert printed.strip() == msmemscope.__file__


def test_the_command_line_imports_nothing_from_pythonpath_or_the_current_directory(tmp_path: Path) -> None:
    for name in ("select", "queue", "platform", "shutil", "click"):
        (tmp_path / f"{name}.py").write_text(f"raise SystemExit('the {name} of the user')")

    assert "msmemscope version" in run([sys.executable, "-m", "msmemscope", "--version"], tmp_path)
    command = str(Path(sys.executable).with_name("msmemscope"))
    assert "msmemscope version" in run([command, "--version"], tmp_path, PYTHONPATH=str(tmp_path))


# The finder of an editable installation imports importlib.util itself, which is not ours to mend.
PREPARED = """
import sys
hers = sys.path.pop(0)
import importlib.util
sys.path.insert(0, hers)
"""
WATCHED = f"""{PREPARED}
import mindspore  # brings this process under watch
from msmemscope.collect.rank.attach import attached
print(attached() is not None, "select" in sys.modules)
del sys.path[0]
"""


def test_a_rank_takes_the_standard_library_for_itself_and_leaves_the_program_its_own(
    poisoned: Path, tmp_path: Path
) -> None:
    (poisoned / "mindspore.py").write_text("")
    (poisoned / "json.py").write_text("mine = True\n")
    script = poisoned / "train.py"
    script.write_text(WATCHED.replace("del sys", "import json; print(json.mine)\ndel sys"))
    words = [sys.executable, "-m", "msmemscope", "--output-path", str(tmp_path / "out"), sys.executable, str(script)]

    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT_S, check=False)

    assert (done.returncode, done.stdout) == (0, "True False\nTrue\n"), done.stderr


def test_library_mode_starts_its_services_past_the_users_modules(poisoned: Path, tmp_path: Path) -> None:
    script = poisoned / "train.py"
    script.write_text(
        f"{PREPARED}\nimport msmemscope\nmsmemscope.config(output_path=sys.argv[1])\nmsmemscope.start()\n"
        "from msmemscope.collect.rank.attach import attached\ndel sys.path[0]\nimport os, time\n"
        "for _ in range(6000):\n"
        "    if all(os.path.exists(attached().path(name)) for name in ('agent.pid', 'aggregator.pid')):\n"
        "        print('both services are up')\n        break\n"
        "    time.sleep(0.01)\n"
    )

    printed = run([sys.executable, str(script), str(tmp_path / "out")], tmp_path)

    assert printed == "both services are up\n"
