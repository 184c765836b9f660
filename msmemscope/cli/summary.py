"""`msmemscope summary RUN [--rank R | --pid P]`: prints what was found in a recorded run. Writes no files."""

from __future__ import annotations

import importlib

import click

from msmemscope.cli.main import HELP
from msmemscope.cli.run_directory import open_run_directory, read_run_info
from msmemscope.progress import progress_bar


@click.command(context_settings=HELP)
@click.argument("run")
@click.option("--rank", type=click.IntRange(min=0), metavar="R", help="Only this rank.")
@click.option("--pid", type=click.IntRange(min=1), metavar="P", help="Only this process and its workers.")
def command(run: str, rank: int | None, pid: int | None) -> int:
    """Print the verdict on a recorded run, or on one of its ranks or processes, on stdout.

    RUN is a run directory, such as memscopeDumpResults/run_20260101120000_a1b2c3.
    """
    path = open_run_directory(run)
    read_run_info(path)
    console = importlib.import_module("msmemscope.report.console")
    with progress_bar() as progress:
        text = console.summary_text(path, rank=rank, pid=pid, progress=progress)
    click.echo(text)
    return 0
