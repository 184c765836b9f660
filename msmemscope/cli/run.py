"""`msmemscope [options] [--] program args…`: checks everything that can be checked, then runs the program watched.

In: the options declared in collect/config.py. Out: a Config and the program's argv for the supervisor, whose
return value is the exit status.
"""

from __future__ import annotations

import importlib
import os
import shlex
import stat
from typing import Any

import click

from msmemscope.cli.main import EXIT_STATUSES, SUBCOMMANDS
from msmemscope.cli.messages import say
from msmemscope.cli.output_place import prepare_output
from msmemscope.cli.program import find_program, preload_obstacles
from msmemscope.cli.trailing import could_be_ours, split_trailing
from msmemscope.collect import config as options
from msmemscope.collect.config import Config, Option, Parsed
from msmemscope.collect.place import choose_place
from msmemscope.collect.settings import LOG_LEVELS
from msmemscope.errors import InputError, MemscopeError, UsageError

DESCRIPTION = (
    "Run PROGRAM and say what it does with its memory, over all ranks: what leaks, on which ranks, from which line. "
    "PROGRAM may be a launcher such as torchrun. Options of msmemscope come before PROGRAM; what follows it "
    "belongs to it, except options such as --analysis=... at the very end, which are taken with a notice; after -- "
    "everything belongs to PROGRAM."
)
_MAX_INPUT_BYTES = 1 << 33
_OLD = "__old"  # marks a deprecated flag among click's parameters
_SOURCED = ("--load-api-env", "--unload-api-env")  # upstream: `source msmemscope --load-api-env`


class _RunCommand(click.Command):
    """Adds the subcommands and exit statuses to the help page, and takes options of ours from the end of the line."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        before = list(args)
        rest = super().parse_args(ctx, args)
        program = ctx.params["program"]
        at = len(before) - len(program)
        if at == 0 or before[at - 1] != "--":
            kept, taken = split_trailing(program)
            if not taken and (left := could_be_ours(program)):
                words = shlex.join(left)
                say(
                    "warning",
                    f"{words} behind the program is the program's; if msmemscope is meant, write: msmemscope {words} "
                    f"{shlex.join(program[: -len(left)])}; if not, -- before the program spares this line",
                )
            ctx.params["program"] = tuple(kept)
            for flag, value in taken.items():
                say(
                    "warning",
                    f"{flag}={value} is taken as msmemscope's own, as upstream does: put it before the program",
                )
                ctx.params[_parameter_of(flag)] = value
        return rest

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
    parsed = _parse(values)
    _tell(parsed)
    config = parsed.config
    if config.compare:
        for path in config.input_paths:
            _check_input(path)
        raise UsageError(f"--compare: {options.BY_NAME['compare'].later['']}; see: msmemscope summary --help")
    if not program:
        raise UsageError("no program to run: write msmemscope [options] [--] program args, or see: msmemscope --help")
    return _run_watched(config, list(program))


def _parse(values: dict[str, Any]) -> Parsed:
    """click's values as a Config. A deprecated flag stands in for its option unless that is given too."""
    texts: dict[str, str] = {}
    switches: list[str] = []
    old_flags: list[str] = []
    for option in options.OPTIONS:
        for flag in option.deprecated:
            text = values.pop(_parameter_name(flag) + _OLD)
            if text is not None:
                old_flags.append(flag)
                texts[option.name] = text
        value = values.get(option.name)
        if value is None or value is False:
            continue
        if option.grammar:
            texts[option.name] = value
        else:
            switches.append(option.name)
    return options.parse_command_line(texts, switches=switches, old_flags=old_flags)


def _tell(parsed: Parsed) -> None:
    """Warnings according to --log-level. What was asked for and is missing is always said: not to is pretending."""
    if LOG_LEVELS.index(parsed.config.log_level) <= LOG_LEVELS.index("warning"):
        for warning in parsed.warnings:
            say("warning", warning)
    for missing in parsed.missing:
        say("warning", missing)


def _run_watched(config: Config, argv: list[str]) -> int:
    if argv[0] in SUBCOMMANDS:
        try:
            path = find_program(argv[0])
        except MemscopeError as error:
            error.args = (f"{error}; the subcommand {argv[0]} must be the first word of all",)
            raise
    else:
        path = find_program(argv[0])
    warnings = [f"{obstacle}: it runs, but is not watched" for obstacle in preload_obstacles(path)]
    warnings += prepare_output(config.output_path)
    try:
        place = choose_place(config.ring_mib << 20)
    except OSError as error:
        raise MemscopeError(str(error)) from None
    if place.warning:
        warnings.append(place.warning)
    _tell(Parsed(config=config, warnings=tuple(warnings)))
    # By name: the supervisor pulls in what a wrong option never needs.
    return int(importlib.import_module("msmemscope.launchers.supervise").run(config, argv))


def _check_input(path: str) -> None:
    try:
        facts = os.lstat(path)
    except OSError as error:
        raise InputError(f"--input-path: cannot read {path} ({error.strerror}): check its name") from None
    if not stat.S_ISREG(facts.st_mode):
        raise InputError(f"--input-path: {path} is not a regular file: name a memscope_dump file itself")
    if facts.st_size > _MAX_INPUT_BYTES:
        raise InputError(f"--input-path: {path} is larger than 8 GiB: split the run with --steps")
    if not os.access(path, os.R_OK):
        raise InputError(f"--input-path: cannot read {path} (Permission denied): change its mode")


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


def _parameter_of(flag: str) -> str:
    """The name under which click keeps the value of `flag`."""
    for option in options.OPTIONS:
        if flag in option.flags:
            return option.name
    return _parameter_name(flag) + _OLD


def _click_option(option: Option) -> click.Option:
    text = option.help
    if option.default:
        text += f" Default: {option.default}."
    if option.grammar:
        return click.Option([option.name, *option.flags], metavar=option.grammar, help=text)
    return click.Option([option.name, *option.flags], is_flag=True, help=text)


def _make_command() -> click.Command:
    parameters: list[click.Parameter] = []
    for option in options.OPTIONS:
        if option.name != "help":  # click's own
            parameters.append(_click_option(option))
        for flag in option.deprecated:
            parameters.append(click.Option([_parameter_name(flag) + _OLD, flag], hidden=True))
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
            "help_option_names": list(options.BY_NAME["help"].flags),
            "max_content_width": 110,
        },
    )


command = _make_command()
