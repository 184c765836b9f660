"""The command `msmemscope [options] [--] program args…` as click has it: every way to write it, and its help page.

In: the options declared in options/declared.py. Out: what watched.py takes. A line in the usual form does not come here
(plain_line.py).
"""

from __future__ import annotations

import importlib
from typing import Any

import click

from msmemscope.cli.analysis_flags import analysis_options, mentions_analysis, take_given
from msmemscope.cli.main import EXIT_STATUSES
from msmemscope.cli.subcommands import SUBCOMMANDS
from msmemscope.cli.watched import ANALYSIS_OPTIONS, name_of_flag, run_program, take_trailing
from msmemscope.errors import UsageError
from msmemscope.options import declared
from msmemscope.options.declared import Option

DESCRIPTION = (
    "Run PROGRAM and say what it does with its memory, over all ranks: what leaks, on which ranks, from which line. "
    "PROGRAM may be a launcher such as torchrun. Options of msmemscope come before PROGRAM; what follows it "
    "belongs to it, except options such as --analysis=... at the very end, which are taken with a notice; after -- "
    "everything belongs to PROGRAM."
)
_WITH_ANALYSES = "msmemscope.with_analyses"  # in click's context: the line has options of analyses
_SOURCED = ("--load-api-env", "--unload-api-env")  # upstream: `source msmemscope --load-api-env`


class _RunCommand(click.Command):
    """Adds the subcommands and exit statuses to the help page, and takes options of ours from the end of the line."""

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        return [*(analysis_options() if ctx.meta.get(_WITH_ANALYSES) else ()), *super().get_params(ctx)]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        before = list(args)
        ctx.meta[_WITH_ANALYSES] = mentions_analysis(args)
        rest = super().parse_args(ctx, args)
        ctx.params["program"] = tuple(take_trailing(before, ctx.params["program"], ctx.params))
        return rest

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_options(ctx, formatter)
        if ctx.meta.get(_WITH_ANALYSES):
            return
        rows = [record for option in analysis_options() if (record := option.get_help_record(ctx))]
        with formatter.section("Options of analyses (config(NAME={option: value}), analyze RUN, too)"):
            formatter.write_dl(rows)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        rows = []
        for name, module in SUBCOMMANDS.items():
            command: click.Command = importlib.import_module(module).command
            rows.append((name, command.get_short_help_str(limit=200)))
        with formatter.section("Commands (a program of the same name: msmemscope -- NAME)"):
            formatter.write_dl(rows)
        with formatter.section("Exit status"):
            formatter.write_dl(list(EXIT_STATUSES.items()))


def _run(program: tuple[str, ...], **values: Any) -> int:
    for flag in _SOURCED:
        if values.pop(_parameter_name(flag)):
            raise UsageError(f"{flag} must be sourced, to change this shell's environment: source msmemscope {flag}")
    if values.pop("version"):
        return _show_version()
    return run_program(program, {**values, ANALYSIS_OPTIONS: take_given(values)})


def _show_version() -> int:
    from importlib.metadata import PackageNotFoundError, version

    try:
        number = version("msmemscope")
    except PackageNotFoundError:  # run from the source tree
        number = "unknown (not installed)"
    click.echo("msMemScope, the distributed edition: what a job does with its memory, over all ranks")
    click.echo(f"msmemscope version {number}")
    return 0


def _parameter_name(flag: str) -> str:
    return flag.lstrip("-").replace("-", "_")


def _click_option(option: Option) -> click.Option:
    text = option.help
    if option.default:
        text += f" Default: {option.default}."
    text += declared.not_in_this_version(option)
    if option.grammar:
        return click.Option([option.name, *option.flags], metavar=option.grammar, help=text)
    return click.Option([option.name, *option.flags], is_flag=True, help=text)


def _make_command() -> click.Command:
    parameters: list[click.Parameter] = []
    for option in declared.OPTIONS:
        if option.name != "help":  # click's own
            parameters.append(_click_option(option))
        for flag in option.deprecated:
            parameters.append(click.Option([name_of_flag(flag), flag], hidden=True))
    for flag in _SOURCED:
        parameters.append(click.Option([_parameter_name(flag), flag], is_flag=True, hidden=True))
    parameters.append(click.Argument(["program"], nargs=-1, type=click.UNPROCESSED, metavar="[--] PROGRAM [ARGS]..."))
    return _RunCommand(
        "msmemscope",
        callback=_run,
        params=parameters,
        help=DESCRIPTION,
        options_metavar="[OPTIONS]",
        context_settings={
            "allow_interspersed_args": False,
            "help_option_names": list(declared.BY_NAME["help"].flags),
            "max_content_width": 110,
        },
    )


command = _make_command()
