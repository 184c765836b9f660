"""What `msmemscope [options] [--] program args…` does with its options: checks all that can be checked, then runs it.

In: the options as texts, and the program's argv. Out: the supervisor's return value, which is the exit status.
Imported each time a program is run, and so without click.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

from msmemscope.cli.messages import say
from msmemscope.cli.output_place import prepare_output
from msmemscope.cli.program import find_program, preload_obstacles
from msmemscope.cli.subcommands import SUBCOMMANDS
from msmemscope.cli.trailing import could_be_ours, split_trailing
from msmemscope.collect.nodes import apart, withheld
from msmemscope.collect.place import choose_place
from msmemscope.errors import MemscopeError, UsageError
from msmemscope.options import declared, given
from msmemscope.options.declared import Config
from msmemscope.options.given import Parsed
from msmemscope.options.settings import LOG_LEVELS

ANALYSIS_OPTIONS = "analysis_options"  # among the values: what was given to options of analyses
_OLD = "__old"  # marks a deprecated flag among the values


def take_trailing(words: Sequence[str], program: Sequence[str], values: dict[str, Any]) -> list[str]:
    """The program's own words. Options of ours at their end go into `values`, with a notice. words: the whole line."""
    at = len(words) - len(program)
    if at > 0 and words[at - 1] == "--":
        return list(program)
    kept, taken = split_trailing(program)
    if not taken and (left := could_be_ours(program)):
        import shlex

        ours = shlex.join(left)
        say(
            "warning",
            f"{ours} behind the program is the program's; if msmemscope is meant, write: msmemscope {ours} "
            f"{shlex.join(program[: -len(left)])}; if not, -- before the program spares this line",
        )
    for flag, value in taken.items():
        say("warning", f"{flag}={value} is taken as msmemscope's own, as upstream does: put it before the program")
        values[name_of_flag(flag)] = value
    return kept


def run_program(program: Sequence[str], values: dict[str, Any]) -> int:
    """values: what name_of_flag() of each flag that was given is set to; None or False: not given."""
    parsed = _settled(_parse(values))
    _tell(parsed)
    config = parsed.config
    if config.compare:
        if program:
            say("warning", f"--compare runs no program: {program[0]} is left alone")
        return int(importlib.import_module("msmemscope.cli.memory_compare").compare_inputs(config))
    if not program:
        raise UsageError("no program to run: write msmemscope [options] [--] program args, or see: msmemscope --help")
    return _run_watched(config, list(program))


def name_of_flag(flag: str) -> str:
    """The name among the values under which what is given to `flag` stands."""
    for option in declared.OPTIONS:
        if flag in option.flags:
            return option.name
    return flag.lstrip("-").replace("-", "_") + _OLD


def _parse(values: dict[str, Any]) -> Parsed:
    """The values as a Config. A deprecated flag stands in for its option unless that is given too."""
    texts: dict[str, str] = {}
    switches: list[str] = []
    old_flags: list[str] = []
    for option in declared.OPTIONS:
        for flag in option.deprecated:
            text = values.get(name_of_flag(flag))
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
    of_analyses = values.get(ANALYSIS_OPTIONS, ())
    return given.parse_command_line(texts, switches=switches, old_flags=old_flags, analysis_options=of_analyses)


def _settled(parsed: Parsed) -> Parsed:
    """With what analyses of other packages and options of analyses come to. The usual line has none of them, and does
    not wait for the registry."""
    config = parsed.config
    if given.asks_analyses(config):
        config = importlib.import_module("msmemscope.analysis.asked").settle(config)
    return parsed.replaced(config=config, warnings=(*parsed.warnings, *given.lacking(config)))


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
    if option := withheld(argv):
        warnings.append(f"{option} keeps LD_PRELOAD and MSMEMSCOPE_SESSION from the ranks: they are not watched")
    if advice := apart(argv):
        warnings.append(advice)
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
