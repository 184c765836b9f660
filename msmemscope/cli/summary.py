"""`msmemscope summary RUN [--rank R | --pid P]`: prints what was found in a recorded run. Writes no files."""

from __future__ import annotations

import importlib
import os
import time
from pathlib import Path

import click

from msmemscope.cli.main import HELP
from msmemscope.cli.run_directory import is_being_recorded, open_run_directory, read_run_info
from msmemscope.progress import progress_bar
from msmemscope.tables.run_files import Anchor
from msmemscope.text import plain

_MOST_BYTES = 1 << 24  # of a text that is printed


@click.command(context_settings=HELP)
@click.argument("run")
@click.option("--rank", type=click.IntRange(min=0), metavar="R", help="Only this rank.")
@click.option("--pid", type=click.IntRange(min=1), metavar="P", help="Only this process and its workers.")
def command(run: str, rank: int | None, pid: int | None) -> int:
    """Print the verdict on a recorded run, or on one of its ranks or processes, on stdout.

    RUN is a run directory, such as memscopeDumpResults/run_20260101120000_a1b2c3. While it is being recorded the latest
    verdict is printed, which is made anew every few seconds; --rank and --pid then know what was stored up to a minute
    ago.
    """
    path = open_run_directory(run)
    finished = read_run_info(path).get("finished", True)
    live = not finished and is_being_recorded(path)
    if live and rank is None and pid is None and (text := _latest_verdict(path)):
        click.echo(text)
        return 0
    console = importlib.import_module("msmemscope.report.console")
    with progress_bar() as progress:
        text = console.summary_text(path, rank=rank, pid=pid, progress=progress)
    click.echo(f"{text}\nStill being recorded: this is said of what is stored so far." if live else text)
    return 0


def _latest_verdict(run: Path) -> str:
    """summary.txt with its age; "" when there is none."""
    try:
        with Anchor(run).open("summary.txt") as file:
            age = time.time() - os.fstat(file.fileno()).st_mtime
            text = file.read(_MOST_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""
    lines = [plain(line) for line in text.splitlines()]
    return "\n".join([*lines, f"Still being recorded: this was said {max(age, 0):.0f} s ago."])
