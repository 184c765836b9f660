"""`msmemscope import FILE… -o RUN`: makes a run of files of other tools, and prints the verdict on it."""

from __future__ import annotations

import importlib
from pathlib import Path

import click

from msmemscope.cli.main import HELP
from msmemscope.cli.messages import say
from msmemscope.errors import UsageError
from msmemscope.options.declared import Config
from msmemscope.options.given import parse_keywords
from msmemscope.progress import progress_bar


@click.command(context_settings=HELP)
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option("-o", "--output", "run", required=True, metavar="RUN", help="The run directory to be made.")
@click.option(
    "--ranks",
    metavar="R,R,...",
    help="The rank of each file, in their order. Without it a file's name tells it: rank3, snapshot_3.pickle; of "
    "csv and db also a directory's, and without one they are of no rank.",
)
@click.option(
    "--steps-at",
    metavar="T,T,...",
    help="When steps begin: microseconds as the files have them, or +seconds from the first event.",
)
@click.option(
    "--steps-by",
    default="auto",
    metavar="WAY",
    help="auto: by marks in the files, else by the rhythm of the allocations; rhythm; none; or how the name of a range "
    "or mark begins with which each step begins.",
)
@click.option(
    "--device", type=click.Choice(["cuda", "npu"]), help="Whose a snapshot is; without it the snapshot itself tells."
)
@click.option(
    "--analysis",
    metavar="NAME,...",
    help="What is looked for and stands in cluster/ then, as for a job: leaks,peak,ledger,health. Without it the same "
    "as of a job that names none. analyze RUN --only NAME asks for any of them later.",
)
def command(
    files: tuple[str, ...],
    run: str,
    ranks: str | None,
    steps_at: str | None,
    steps_by: str,
    device: str | None,
    analysis: str | None,
) -> int:
    """Make a run of files that another tool wrote, and print the verdict on it.

    FILE is a memory snapshot of PyTorch or torch_npu (torch.cuda.memory._dump_snapshot()), one per rank, plain or
    packed by gzip, xz, bzip2 or zstd; or a memscope_dump_*.csv or .db, or a directory of them. All commands that take
    a run take the one that is made.
    """
    job = importlib.import_module("msmemscope.imports.job")
    config = None if analysis is None else parse_keywords({"analysis": analysis}).config
    request = job.Request(
        paths=tuple(Path(name) for name in files),
        run=Path(run),
        ranks=_numbers(ranks),
        steps_at=tuple(text.strip() for text in steps_at.split(",")) if steps_at else (),
        steps_by=steps_by,
        device=device or "",
        config={} if config is None else Config().replaced(analysis=config.analysis, oom_top=config.oom_top).as_dict(),
    )
    with progress_bar() as progress:
        notes = job.import_job(request, progress=progress)
    for note in notes:
        say("info", note)
    outputs = importlib.import_module("msmemscope.report.outputs")
    with progress_bar() as progress:

        def tell(verdict: str) -> None:
            if progress is not None:
                progress.clear()
            click.echo(verdict)

        outcome = outputs.write_outputs(Path(run), progress=progress, tell=tell)
    for note in outcome.notes:
        say("info", note)
    return 0


def _numbers(text: str | None) -> tuple[int, ...]:
    words = [word.strip() for word in text.split(",")] if text else []
    if not all(word.isascii() and word.isdigit() and len(word) < 9 for word in words):
        raise UsageError(f"--ranks takes numbers with commas between them; got {text!r}")
    return tuple(int(word) for word in words)
