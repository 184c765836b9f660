"""`msmemscope owner RUN ADDRESS|NAME [--step N]`: whose the blocks at an address were, and since when; or which lines
an owner's bytes come from. Writes no files."""

from __future__ import annotations

import importlib

import click

from msmemscope.cli.main import HELP
from msmemscope.cli.messages import say
from msmemscope.cli.run_directory import is_being_recorded, open_run_directory, read_run_info
from msmemscope.progress import progress_bar


def _address_or_name(_: click.Context, __: click.Parameter, value: str) -> int | str:
    """A number from 1 on, decimal or with 0x; what does not begin with a digit is a name."""
    if value and not value[0].isdigit() and not value.startswith("-"):
        return value
    try:
        address = int(value, 0)
    except ValueError:
        address = 0
    if not 0 < address < 1 << 64:
        raise click.BadParameter(f"{value!r} is no address: give it as the files do, 0x000012c041200000, or decimal")
    return address


@click.command(context_settings=HELP)
@click.argument("run")
@click.argument("which", callback=_address_or_name, metavar="ADDRESS|NAME")
@click.option(
    "--step",
    type=click.IntRange(min=0),
    metavar="N",
    help="Only blocks alive in this step, and their owner then; of a name its lines in this step.",
)
@click.option("--rank", type=click.IntRange(min=0), metavar="R", help="Only this rank.")
@click.option("--pid", type=click.IntRange(min=1), metavar="P", help="Only this process.")
def command(run: str, which: int | str, step: int | None, rank: int | None, pid: int | None) -> int:
    """Print whose the blocks at ADDRESS were, from which step on, and where they were allocated; or the lines from
    which the bytes of the owner NAME come, at the peak and at the end; on stdout.

    RUN is a run directory; ADDRESS lies anywhere in a block, as 0x000012c041200000. Every process has addresses of its
    own: without --rank and --pid all are looked at. NAME is an owner with all below it, optimizer_state or
    PTA@optimizer_state; without --rank and --pid of the whole job. Owners are known as far as labels were recorded:
    --analysis decompose, msmemscope.describe.
    """
    path = open_run_directory(run)
    if not read_run_info(path).get("finished", True):
        so_far = "is being recorded" if is_being_recorded(path) else "was not finished"
        say("info", f"{path} {so_far}: this is said of what is stored of it")
    with progress_bar() as progress:
        if isinstance(which, str):
            lines = importlib.import_module("msmemscope.report.owner_lines").owner_lines_text
            text = lines(path, which, rank=rank, pid=pid, step=step, progress=progress)
        else:
            of_address = importlib.import_module("msmemscope.report.owner_text").owner_text
            text = of_address(path, which, rank=rank, pid=pid, step=step, progress=progress)
    click.echo(text)
    return 0
