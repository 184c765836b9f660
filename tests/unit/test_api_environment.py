"""`source msmemscope --load-api-env`: what the command does to a shell that sources it.

The script stands here as an installer leaves it: with the path of this Python in its first line.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from patience import LIMIT_S

from msmemscope.collect.session import HOOK_LIBRARY, hook_library

SOURCE = Path(__file__).resolve().parent.parent.parent / "packaging" / "msmemscope"
LIBRARY = hook_library()
DIRECTORY = str(Path(LIBRARY).parent)
VARIABLES = ("LD_LIBRARY_PATH", "LD_PRELOAD", "MSMEMSCOPE_LIB_PATH")
SHELLS = [
    pytest.param(["bash", "--norc"], id="bash"),
    pytest.param(
        ["zsh", "-f"], id="zsh", marks=pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is not there")
    ),
]


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """The command, in a directory that is searched for it."""
    place = tmp_path / "bin" / "msmemscope"
    place.parent.mkdir()
    first, _, rest = SOURCE.read_text(encoding="utf-8").partition("\n")
    assert first == "#!python"  # what an installer replaces
    place.write_text(f"#!{sys.executable}\n{rest}", encoding="utf-8")
    place.chmod(0o755)
    return place


def in_shell(shell: list[str], script: Path, commands: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs `commands` in a shell that has the command in its path and nothing of ours in its environment."""
    kept = {name: value for name, value in os.environ.items() if name not in VARIABLES and "MSMEMSCOPE" not in name}
    kept["PATH"] = f"{script.parent}:{kept['PATH']}"
    return subprocess.run(
        [*shell, "-c", commands],
        capture_output=True,
        text=True,
        check=False,
        env={**kept, **environment},
        timeout=LIMIT_S,
    )


SHOW = "; " + "; ".join(f'echo "{name}=${{{name}-(unset)}}"' for name in VARIABLES)


def variables_after(shell: list[str], script: Path, commands: str, **environment: str) -> dict[str, str]:
    done = in_shell(shell, script, commands + SHOW, **environment)
    assert done.returncode == 0, done.stderr
    return dict(line.split("=", 1) for line in done.stdout.splitlines())


@pytest.mark.parametrize("flag", ["--load-api-env", "--unload-api-env"])
def test_executed_it_says_that_it_must_be_sourced(script: Path, flag: str):
    for command in (f"msmemscope {flag}", f"bash {script} {flag}"):
        done = in_shell(["bash", "--norc"], script, command)
        assert done.returncode == 2
        assert "must be sourced" in done.stderr
        assert f"source msmemscope {flag}" in done.stderr


def test_executed_it_is_the_command(script: Path):
    done = in_shell(["bash", "--norc"], script, "msmemscope --version")
    assert done.returncode == 0
    assert done.stdout.splitlines()[-1].startswith("msmemscope version ")


@pytest.mark.parametrize("shell", SHELLS)
def test_loaded_into_an_empty_environment(shell: list[str], script: Path):
    assert variables_after(shell, script, "source msmemscope --load-api-env") == {
        "LD_LIBRARY_PATH": DIRECTORY,
        "LD_PRELOAD": LIBRARY,
        "MSMEMSCOPE_LIB_PATH": DIRECTORY,
    }


@pytest.mark.parametrize("shell", SHELLS)
def test_loaded_twice_is_loaded_once_and_before_what_was_there(shell: list[str], script: Path):
    twice = "source msmemscope --load-api-env && source msmemscope --load-api-env"
    found = variables_after(shell, script, twice, LD_LIBRARY_PATH="/usr/local/lib:/opt/cann/lib64")
    assert found["LD_LIBRARY_PATH"] == f"{DIRECTORY}:/usr/local/lib:/opt/cann/lib64"
    assert found["LD_PRELOAD"] == LIBRARY


@pytest.mark.parametrize("shell", SHELLS)
def test_unloaded_takes_ours_and_leaves_the_rest(shell: list[str], script: Path):
    mixed = (
        f"export LD_LIBRARY_PATH=/usr/local/lib:{DIRECTORY}:/opt/cann/lib64:{DIRECTORY}2:/a/b; "
        f"export LD_PRELOAD='/opt/other/hook.so:{LIBRARY} /opt/{HOOK_LIBRARY}:/opt/x.so'; "
        "source msmemscope --unload-api-env"
    )
    assert variables_after(shell, script, mixed) == {
        "LD_LIBRARY_PATH": f"/usr/local/lib:/opt/cann/lib64:{DIRECTORY}2:/a/b",
        "LD_PRELOAD": f"/opt/other/hook.so:/opt/{HOOK_LIBRARY}:/opt/x.so",
        "MSMEMSCOPE_LIB_PATH": "(unset)",
    }


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("before", ["", "source msmemscope --load-api-env; source msmemscope --unload-api-env; "])
def test_unloaded_leaves_nothing_empty(shell: list[str], script: Path, before: str):
    found = variables_after(shell, script, f"{before}source msmemscope --unload-api-env")
    assert found == dict.fromkeys(VARIABLES, "(unset)")


@pytest.mark.parametrize("shell", SHELLS)
def test_another_installation_gives_way(shell: list[str], script: Path, tmp_path: Path):
    other = tmp_path / "other" / "msmemscope"
    found = variables_after(
        shell,
        script,
        f"export LD_LIBRARY_PATH={other}:/a LD_PRELOAD={other}/{HOOK_LIBRARY}; source msmemscope --load-api-env",
        MSMEMSCOPE_LIB_PATH=str(other),
    )
    assert found == {
        "LD_LIBRARY_PATH": f"{DIRECTORY}:/a",
        "LD_PRELOAD": LIBRARY,
        "MSMEMSCOPE_LIB_PATH": DIRECTORY,
    }


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("words", ["", " --version", " train.py"])
def test_a_wrong_word_changes_nothing_and_the_shell_lives(shell: list[str], script: Path, words: str):
    found = variables_after(shell, script, f"source {script}{words}; echo status=$?")
    assert found.pop("status") == "2"
    assert found == dict.fromkeys(VARIABLES, "(unset)")


def test_a_strict_shell_lives_and_nothing_of_ours_stays_in_it(script: Path):
    names = "compgen -v | grep -v '^_$\\|^BASH\\|^PIPESTATUS$\\|^before$\\|^after$'; declare -F"
    commands = (
        f"set -eu; before=$({names}); source msmemscope --load-api-env; source msmemscope --unload-api-env; "
        f'after=$({names}); [ "$before" = "$after" ] && echo same'
    )
    done = in_shell(["bash", "--norc"], script, commands)
    assert (done.stdout, done.stderr) == ("same\n", "")


def test_a_program_of_such_a_shell_remembers_its_blocks(script: Path):
    """It is not recorded before it says so, but its hooks are in place from the start."""
    program = (
        "import sys\n"
        "from msmemscope import _native\n"
        "found = [hook['symbol'] for hook in _native.hooks() if hook['slots']]\n"
        "print('dlsym' in found, _native.stats()['recording'], 'msmemscope.collect.rank.attach' in sys.modules)"
    )
    run = f"{sys.executable} -c '{program.replace(chr(39), chr(34))}'"
    assert in_shell(["bash", "--norc"], script, run).stdout == "False False False\n"
    assert (
        in_shell(["bash", "--norc"], script, f"source msmemscope --load-api-env; {run}").stdout == "True False False\n"
    )


@pytest.mark.parametrize(("is_there", "expected"), [(True, "unchanged"), (False, "ours in front")])
def test_the_library_of_another_installation_is_enough_for_the_children(
    tmp_path: Path, is_there: bool, expected: str
) -> None:
    """torch_npu looks for its name alone, and two of them in one process are one too many."""
    other = tmp_path / HOOK_LIBRARY
    if is_there:
        other.write_bytes(b"")
    code = (
        f"import os; os.environ['LD_PRELOAD'] = {str(other)!r}\n"
        "from msmemscope.collect.rank.bootstrap import announce\n"
        "announce(); print(os.environ['LD_PRELOAD'])"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    assert said == (str(other) if expected == "unchanged" else f"{LIBRARY}:{other}")
