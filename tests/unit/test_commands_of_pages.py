"""Every command line of ours in README.md, CONTRIBUTING.md and docs/: its command and its options exist, with such
values. Nothing is run; what a page calls RUN, PROGRAM or … stands for files that are there.
"""

from __future__ import annotations

import importlib
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from msmemscope.cli import watched
from msmemscope.cli.run import command as run_a_program
from msmemscope.cli.subcommands import SUBCOMMANDS
from msmemscope.errors import MemscopeError

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
GENERATED = "options.md"  # from the commands themselves
OURS = re.compile(r"(?:\w+=\S+ )*(?:python (?:-\w )?-m )?msmemscope (?P<words>.+)")
# What a command must find: then its options were read.
MISSING = (
    "does not exist",
    "Missing argument",
    "Missing parameter",
    "no program to run",
    "cannot read",
    "needs two files",
)


@pytest.fixture(autouse=True)
def nothing_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(watched, "_run_watched", lambda _config, _program: 0)
    monkeypatch.chdir(tmp_path)


def lines_of(text: str) -> Iterator[str]:
    """Of blocks of code, and of code within a line."""
    text = re.sub(r"\\\n\s*", "", text)
    for line in re.findall(r"^(?:    | {2}\$ )(\S.*)$", text, re.MULTILINE):
        yield re.split(r"\s{2,}#|\s#\s", line)[0].strip()
    for code in re.findall(r"```(?:sh|bash|console|shell)?\n(.*?)```", text, re.DOTALL):
        yield from (line.partition(" #")[0].removeprefix("$ ").strip() for line in code.splitlines())
    yield from (code.replace("\n", " ") for code in re.findall(r"(?<!`)`(msmemscope [^`]+)`(?!`)", text))


def words_of(line: str) -> list[str] | None:
    """The words of ours on a line; None where it is another program's."""
    found = OURS.fullmatch(line)
    if found is None:
        return None
    words = shlex.split(re.split(r" [|;&]| 2?>", found["words"])[0])
    return ["0" if word == "R" else word for word in words if word not in ("…", "...")]


COMMANDS = sorted(
    {
        (page.name, " ".join(words))
        for page in PAGES
        if page.name != GENERATED
        for line in lines_of(page.read_text())
        if (words := words_of(line))
    }
)


@pytest.mark.parametrize(("page", "line"), COMMANDS, ids=lambda one: one[:60])
def test_a_command_line_of_a_page_is_one(page: str, line: str) -> None:
    said = refusal(line.split(" "))
    assert not said or any(text in said for text in MISSING), said


def refusal(words: list[str]) -> str:
    """What is wrong with them, "" for nothing."""
    name = words[0] if words[0] in SUBCOMMANDS else ""
    command: click.Command = importlib.import_module(SUBCOMMANDS[name]).command if name else run_a_program
    try:
        context = command.make_context(f"msmemscope {name}", words[1:] if name else words)
        if not name:
            command.invoke(context)  # where values are looked at
    except click.exceptions.Exit:  # --help
        return ""
    except click.UsageError as error:
        return error.format_message()
    except MemscopeError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("line", ["analyze RUN --olny leaks", "--analysis nonsense python x.py", "summary RUN MORE"])
def test_what_is_no_command_line_is_refused(line: str) -> None:
    said = refusal(line.split(" "))
    assert said
    assert not any(text in said for text in MISSING)


def test_pages_have_commands() -> None:
    assert len(COMMANDS) > 60
    assert {line.split(" ")[0] for _, line in COMMANDS} >= set(SUBCOMMANDS)
