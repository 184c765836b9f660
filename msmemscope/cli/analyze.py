"""`msmemscope analyze RUN [--only NAME]`: analyses a recorded run again and writes everything derived from it anew."""

from __future__ import annotations

import importlib
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from msmemscope.cli.analysis_flags import analysis_options, analysis_switches, take_given, take_switched
from msmemscope.cli.main import HELP
from msmemscope.cli.messages import say
from msmemscope.cli.run_directory import config_of_run, is_being_recorded, open_run_directory, read_run_info
from msmemscope.errors import MemscopeError
from msmemscope.options.declared import Config
from msmemscope.progress import progress_bar


class _AnalyzeCommand(click.Command):
    """Takes the options of analyses, and their names as switches."""

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        return [*super().get_params(ctx), *analysis_options(), *analysis_switches()]


def _print_list(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    if not wanted:
        return
    registry = importlib.import_module("msmemscope.analysis.registry")
    names = registry.list_analyzers()
    width = max(map(len, names))
    for name in names:
        click.echo(f"{name:<{width}} {registry.title_of(registry.get_analyzer(name))}")
    context.exit()


@click.command(context_settings=HELP, cls=_AnalyzeCommand)
@click.argument("run")
@click.option(
    "--list",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_list,
    help="Print the names of all analyses that are installed, for --only and --analysis, and what each looks for.",
)
@click.option(
    "--only",
    multiple=True,
    metavar="NAME",
    help="Run this analysis alone, whatever --analysis said, and print what it finds; nothing is written. May be given "
    "several times, or with several names and commas between them; --watch is short for --only watch, and so on.",
)
def command(run: str, only: tuple[str, ...], **values: Any) -> int:
    """Analyse a recorded run again: findings, cluster tables and per-device files are written anew, and the verdict
    is printed. While the run is being recorded the verdict is printed on what is stored, and nothing is written.

    RUN is a run directory, such as memscopeDumpResults/run_20260101120000_a1b2c3. Options of analyses replace those
    that the run was recorded with.
    """
    given = take_given(values)
    names = [*take_switched(values), *(name.strip() for text in only for name in text.split(","))]
    if names:
        return _print_only(run, names, given)
    importlib.import_module("msmemscope.collect.unsaved").make_run(Path(run))
    path = open_run_directory(run, to_write=True)
    info = read_run_info(path)
    if is_being_recorded(path):
        say("info", f"{path} is being recorded: this is said of what is stored of it; its files are written at its end")
        with progress_bar() as progress:
            text = importlib.import_module("msmemscope.report.console").summary_text(path, progress=progress)
        click.echo(f"{text}\nStill being recorded: this is said of what is stored so far.")
        return 0
    if not info.get("finished", True):
        say("warning", f"{path} was not finished: what was stored until then is analysed")
    if importlib.import_module("msmemscope.aggregate.take_up").recover(path):
        info = read_run_info(path)
    outputs = importlib.import_module("msmemscope.report.outputs")
    with progress_bar() as progress:

        def tell(verdict: str) -> None:
            if progress is not None:
                progress.clear()
            click.echo(verdict)

        outcome = outputs.write_outputs(
            path, config=_with_options(config_of_run(info), given), progress=progress, tell=tell
        )
    if outcome.skipped:
        with suppress(OSError, ValueError, KeyError, TypeError):  # a run.json of somebody else's making stays as it is
            note = importlib.import_module("msmemscope.aggregate.coordinator").note_unread
            note(path, outcome.skipped, outcome.unreadable_rows)
    for note in outcome.notes:
        say("info", note)
    return 0


def _print_only(run: str, names: list[str], given: tuple[str, ...]) -> int:
    path = open_run_directory(run)
    info = read_run_info(path)
    if not info.get("finished", True):
        so_far = "is being recorded" if is_being_recorded(path) else "was not finished"
        say("info", f"{path} {so_far}: what is stored of it is analysed")
    analyse = importlib.import_module("msmemscope.report.analysed").analyse
    opened = importlib.import_module("msmemscope.tables.run").Run(path)
    with progress_bar() as progress:
        made = analyse(opened, _with_options(config_of_run(info), given), only=names, progress=progress)
    click.echo(importlib.import_module("msmemscope.report.console").only_text(made, names))
    return MemscopeError.exit_status if any(one.failed for one in made.judged) else 0


def _with_options(config: Config, given: tuple[str, ...]) -> Config:
    """UsageError for a value that is none, before anything long is begun."""
    if not given:
        return config
    replaced = {text.partition("=")[0] for text in given}
    kept = [text for text in config.analysis_options if text.partition("=")[0] not in replaced]
    importlib.import_module("msmemscope.analysis.asked").settle(Config(analysis_options=given))
    return config.replaced(analysis_options=tuple(sorted((*kept, *given))))
