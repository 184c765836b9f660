"""`msmemscope export RUN --format csv|db`: writes the per-device files of a recorded run in another format."""

from __future__ import annotations

import importlib

import click

from msmemscope.cli.main import HELP
from msmemscope.cli.messages import say
from msmemscope.cli.progress import progress_bar
from msmemscope.cli.run_directory import config_of_run, open_run_directory, read_run_info
from msmemscope.collect.settings import FORMATS


@click.command(context_settings=HELP)
@click.argument("run")
@click.option("--format", "format_", type=click.Choice(FORMATS), required=True, help="csv, or db for SQLite.")
def command(run: str, format_: str) -> int:
    """Write the per-device files of a recorded run as CSV or SQLite.

    RUN is a run directory; the files go below it, beside those that are there, and their names are printed.
    """
    path = open_run_directory(run, to_write=True)
    config = config_of_run(read_run_info(path)).replaced(format=format_)
    outputs = importlib.import_module("msmemscope.report.outputs")
    with progress_bar() as progress:
        outcome = outputs.write_outputs(path, config=config, progress=progress)
    for file in outcome.files:
        if file.suffix == f".{format_}" and file.parent.name == "dump":
            click.echo(file)
    for note in outcome.notes:
        say("info", note)
    return 0
