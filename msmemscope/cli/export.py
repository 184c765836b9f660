"""`msmemscope export RUN --format csv|db`: writes the per-device files of a recorded run."""

from __future__ import annotations

import importlib

import click

from msmemscope.cli.main import HELP
from msmemscope.cli.messages import say
from msmemscope.cli.run_directory import config_of_run, open_run_directory, read_run_info
from msmemscope.options.settings import FORMATS
from msmemscope.progress import progress_bar


@click.command(context_settings=HELP)
@click.argument("run")
@click.option("--format", "format_", type=click.Choice(FORMATS), required=True, help="csv, or db for SQLite.")
def command(run: str, format_: str) -> int:
    """Write the per-device files of a recorded run as CSV or SQLite, however large they become.

    RUN is a run directory; the files go beside it, and their names are printed. Of a run that is still being recorded
    they hold what is stored by now.
    """
    path = open_run_directory(run, to_write=True)
    info = read_run_info(path)
    if not info.get("finished", True):
        say("warning", f"{path} is not finished: what is stored by now is exported")
    config = config_of_run(info).replaced(format=format_, format_given=True)
    files = importlib.import_module("msmemscope.report.upstream_files")
    with progress_bar() as progress:
        made = files.export_upstream_files(path, config, progress=progress)
    for file in made.files:
        click.echo(file)
    for note in made.notes:
        say("info", note)
    return 0
