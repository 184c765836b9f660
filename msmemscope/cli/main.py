"""The command line: decides which command a line means, and turns every error into one line and a status.

`msmemscope [options] [--] program args…` runs a program. A first word that names a subcommand means that; after
`--`, or after any option, the word is a program. Each command is a click command in a file of its own, imported
only when it is called; the usual line that runs a program is read without click (plain_line.py).
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import NoReturn

from msmemscope.cli.messages import say
from msmemscope.cli.subcommands import SUBCOMMANDS
from msmemscope.collect.nothing import open_nothing
from msmemscope.errors import MemscopeError, UsageError

HELP = {"help_option_names": ["-h", "--help"]}  # of every subcommand

# Exit status → when. docs/options.md shows this table.
EXIT_STATUSES = {
    "the program's": "it ran: its own status; when signal N ended it, msmemscope ends by N too (a shell shows 128 + N)",
    "1": "msmemscope compare: a limit of --fail-on is broken",
    "2": "wrong option or argument; nothing was run",
    "3": "input that cannot be used, such as a directory that is not a run",
    "4": "msmemscope itself failed",
    "126": "the program is there but cannot be executed",
    "127": "the program is not there",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command line (default: this process's). Returns the exit status; prints no traceback for a
    user's mistake."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    name = words[0] if words else ""
    try:
        if name in SUBCOMMANDS:
            return _call(SUBCOMMANDS[name], name, words[1:])
        from msmemscope.cli.plain_line import read_plain_line
        from msmemscope.cli.watched import run_program, take_trailing

        plain = read_plain_line(words)
        if plain is None:
            return _call("msmemscope.cli.run", "", words)
        program, values = plain
        return run_program(take_trailing(words, program, values), values)
    except MemscopeError as error:
        say("error", error)
        return error.exit_status
    except KeyboardInterrupt as error:
        say("error", str(error) or "interrupted")
        return 130
    except BrokenPipeError:
        # The reader of our stdout has gone (`| head`). Python would complain again while it exits.
        os.dup2(open_nothing(), sys.stdout.fileno())
        return 141
    except Exception as error:  # noqa: BLE001 - whatever it is, the user gets one line and a status
        if os.environ.get("MSMEMSCOPE_DEBUG"):
            import traceback

            traceback.print_exc()
        say("error", f"{type(error).__name__}: {error}; this is a fault of msmemscope: MSMEMSCOPE_DEBUG=1 shows where")
        return 4


def main_and_leave() -> NoReturn:
    """main() for a process that is nothing else. After a program it ends at once: taking the interpreter apart would
    only make the user wait."""
    status = main()
    if sys.argv[1:2] and sys.argv[1] in SUBCOMMANDS and not sys.flags.inspect:  # PYTHONINSPECT is for the program
        sys.exit(status)
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            if stream is not None:  # closed before we began: `>&-`
                stream.flush()
    os._exit(status)


def _call(module: str, name: str, words: list[str]) -> int:
    """Parses with click and invokes. Not command.main(): that has its own way with Ctrl-C and a broken pipe. name: of
    the subcommand."""
    import click

    command: click.Command = importlib.import_module(module).command
    program = f"msmemscope {name}".rstrip()
    try:
        with command.make_context(program, words) as context:
            status = int(command.invoke(context) or 0)
    except click.exceptions.Exit as leave:  # --help
        status = leave.exit_code
    except click.ClickException as error:
        raise UsageError(f"{error.format_message().rstrip('.')}; see: {program} --help") from None
    except click.Abort as error:
        raise KeyboardInterrupt(str(error)) from None
    if sys.stdout is not None:  # closed before we began: `>&-`
        sys.stdout.flush()  # here, where a reader that has gone is still only an exception
    return status
