"""`msmemscope compare A B`: what changed between two runs, or between two steps, ranks or roles of one."""

from __future__ import annotations

import importlib
import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from msmemscope.cli.main import HELP
from msmemscope.cli.messages import say
from msmemscope.cli.run_directory import open_run_directory
from msmemscope.errors import MemscopeError, UsageError
from msmemscope.progress import progress_bar


@click.command(context_settings=HELP)
@click.argument("inputs", nargs=-1, required=True, metavar="A [B]...")
@click.option("--steps", default="", metavar="STEPS[:STEPS]...", help="Such as 3:10, 3-9:20-29, or 5 of both.")
@click.option("--ranks", default="", metavar="RANKS[:RANKS]...", help="Such as 0:1, 0-3:4-7, or 0,2 of both.")
@click.option("--roles", default="", metavar="ROLE[:ROLE]...", help="Such as actor:rollout, or one of both.")
@click.option(
    "--fail-on",
    multiple=True,
    metavar="LIMITS",
    help="Exit with status 1 when a figure changed by more: METRIC>CHANGE with commas between them, such as "
    "peak>+2%,allocs>0,site:train.py:58>+64MiB. METRIC is peak, end, reserved, allocs or site:FILE:LINE; CHANGE is in "
    "%, KiB, MiB, GiB or bytes. May be given several times.",
)
@click.option(
    "--min-bytes", type=int, metavar="N", help="Of changes below so many bytes nothing is said. Default: 65536."
)
@click.option("--min-share", type=float, metavar="X", help="Of changes below this share, neither. Default: 0.01.")
@click.option("-o", "--output", metavar="DIRECTORY", help="Write everything as csv and json files there.")
def command(
    inputs: tuple[str, ...],
    steps: str,
    ranks: str,
    roles: str,
    fail_on: tuple[str, ...],
    output: str | None,
    **least: Any,
) -> int:
    """Compare B, and any more, with A: peaks, ends of steps, reserved memory, allocations per step, lines and owners at
    the peak, and operators where they were recorded.

    A and B are run directories, or what `msmemscope import` takes: upstream's csv and db files, directories of them,
    and memory snapshots of PyTorch. One run alone is compared with itself: two of its steps, ranks or roles, or more,
    each with the first (--steps 3:10:20). Exit status 1 when a limit of --fail-on is broken.
    """
    limits = importlib.import_module("msmemscope.analysis.compare_limits")
    wanted = [limit for text in fail_on for limit in limits.parse_limits(text)]
    choices = _choices(steps, ranks, roles, least, alone=len(inputs) == 1)
    if len(inputs) == 1 and not choices[0].compares_within:
        raise UsageError("one run alone: name another, or two of its steps, ranks or roles, such as --steps 3:10")
    report = importlib.import_module("msmemscope.report.comparison")
    names = report.NAMES
    if (sides := max(len(inputs), len(choices) + 1)) > len(names):
        raise UsageError(f"at most {len(names)} are compared; got {sides}")
    status = 0
    with ExitStack() as stack:
        with progress_bar() as progress:
            read = [report.read_run(stack.enter_context(_as_run(text)), text, progress=progress) for text in inputs]
        first = read[0]
        others = [(other, choices[0]) for other in read[1:]] or [(first, options) for options in choices]
        for at, (other, options) in enumerate(others, 1):
            comparison = report.compare_read(first, other, options, (names[0], names[at]))
            broken = [
                text for one in wanted for text in limits.broken(one, comparison.a, comparison.b, comparison.pairing)
            ]
            verdict = report.verdict_of(comparison, [one.text for one in wanted], broken, options)
            click.echo(report.comparison_text(first, other, comparison, verdict))
            for text in broken:
                say("error", text)
                status = 1
            if output is not None:
                directory = Path(output) if len(others) == 1 else Path(output) / names[at]
                _write(report, directory, comparison, broken)
    return status


def _choices(steps: str, ranks: str, roles: str, least: dict[str, Any], *, alone: bool) -> list[Any]:
    """What is compared with A, one by one. alone: there is one run, and so several of its steps, ranks or roles."""
    compare = importlib.import_module("msmemscope.analysis.compare")
    try:
        options = compare.CompareOptions(**{name: value for name, value in least.items() if value is not None})
        if alone:
            return list(compare.each_with_first(steps, ranks, roles, options))
        return [replace(options, steps=steps, ranks=ranks, roles=roles)]
    except ValueError as error:
        raise UsageError(f"--{str(error).replace('_', '-', 1)}") from None


@contextmanager
def _as_run(text: str) -> Iterator[Path]:
    """A run directory; of files of another tool one that is gone afterwards."""
    path = Path(text)
    if not _is_foreign(path):
        yield open_run_directory(text)
        return
    job = importlib.import_module("msmemscope.imports.job")
    try:
        place = tempfile.TemporaryDirectory(prefix="msmemscope-compare-")
    except OSError as error:
        raise MemscopeError(f"cannot import {text}: no temporary directory ({error.strerror}): set TMPDIR") from None
    with place as directory:
        run = Path(directory) / "run"
        for note in job.import_job(job.Request(paths=(path,), run=run)):
            say("info", f"{text}: {note}")
        yield run


def _is_foreign(path: Path) -> bool:
    if not path.is_dir():
        return path.is_file()
    # Beside runs lie upstream's files of the same runs: of such a directory nobody knows which is meant.
    if os.path.lexists(path / "run.json") or any(path.glob("*/run.json")):
        return False
    return bool(importlib.import_module("msmemscope.imports.upstream_files").files_below(path))


def _write(report: Any, directory: Path, comparison: Any, broken: list[str]) -> None:
    try:
        report.write_comparison(directory, comparison, broken)
    except (FileExistsError, NotADirectoryError):
        raise UsageError(f"-o {directory} is a file: name a directory") from None
    except OSError as error:
        raise MemscopeError(f"cannot write {directory}: {error.strerror or error}") from None
