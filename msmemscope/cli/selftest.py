"""`msmemscope selftest [NAME…]`: scripted jobs whose findings are known, on the way of every byte, on this machine."""

from __future__ import annotations

import importlib
import time

import click

from msmemscope.cli.main import HELP
from msmemscope.errors import MemscopeError, UsageError
from msmemscope.progress import progress_bar


@click.command(context_settings=HELP)
@click.argument("name", nargs=-1)
@click.option("--list", "names_only", is_flag=True, help="Print the names and run nothing.")
def command(name: tuple[str, ...], names_only: bool) -> int:
    """Check that what is installed here gives the right answers: scripted jobs with faults that are known to the byte,
    and clean ones, go through rings, tables and analyses as a job's events do. It needs neither a card nor torch, takes
    some seconds, and leaves nothing behind.

    NAME is an analysis or a job, as --list prints them; without one all of them are run. The exit status is 4 when an
    answer is wrong.
    """
    selftest = importlib.import_module("msmemscope.selftest.case")
    known = selftest.all_cases()
    chosen = [case for case in known if not name or not {case.name, case.analysis}.isdisjoint(name)]
    if strange := set(name) - {case.name for case in known} - {case.analysis for case in known}:
        raise UsageError(f"unknown selftest {min(strange)!r}; msmemscope selftest --list names them")
    if names_only:
        for case in chosen:
            click.echo(f"{case.analysis:<12} {'clean' if case.is_clean else 'fault'}  {case.name}")
        return 0
    begun = time.monotonic()
    passed = 0
    with progress_bar() as progress:
        for number, case in enumerate(chosen):
            if progress is not None:
                progress("selftest", number, len(chosen))
            try:
                wrong = selftest.failures(case)
            except Exception as error:  # noqa: BLE001 - whatever fails here is an answer; the others are asked for, too
                wrong = [f"{type(error).__name__}: {error}"]
            passed += not wrong
            if wrong and progress is not None:
                progress.clear()
            for text in wrong:
                click.echo(f"WRONG {case.analysis}: {case.name}: {text}")
    click.echo(f"{passed} of {len(chosen)}, {time.monotonic() - begun:.1f} s")
    return 0 if passed == len(chosen) else MemscopeError.exit_status
