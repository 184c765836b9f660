"""Options of msmemscope that stand behind the program, where upstream takes them too.

Upstream permutes its command line: in `msmemscope bash train.sh --analysis=leaks --level=op,kernel` both options are
its own, and scripts written for it say so. They would be lost on the program, but a program's own `--device=npu
--steps=100` must not be taken from it. So words are taken only from the end, only when every one of them is an option
of ours written --name=value with a value that we understand, and only when one of them can hardly be meant for
anybody else. `--` before the program keeps everything for the program.

Where all of the program's last options might be ours and none of them need be, they stay the program's, and are told;
so do those of them that are written --name value, as upstream takes them too.
"""

from __future__ import annotations

from collections.abc import Sequence

from msmemscope.options import declared, given
from msmemscope.options.declared import Option, OptionError

_OURS = ("--analysis", "--call-stack", "--collect-mode", "--events")  # with a value of ours, nobody else's
_LEVELS = ("op", "kernel", "0,1", "1,0")  # what upstream's --level takes and a log level or a compressor does not


def split_trailing(program: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """The program's own words, and flag → value of those that are ours. Repeated flags: the last one counts."""
    start = len(program)
    while start > 1 and _understood(program[start - 1]):
        start -= 1
    taken = [word.partition("=") for word in program[start:]]
    if not any((flag in _OURS and value) or (flag == "--level" and _is_level(value)) for flag, _, value in taken):
        return list(program), {}
    return list(program[:start]), {flag: value for flag, _, value in taken}


def could_be_ours(program: Sequence[str]) -> list[str]:
    """The options at the very end, when every one of them could be ours too. For a line that split_trailing() left."""
    start = len(program)
    while start > 1 and program[start - 1].startswith("-"):
        start -= 1
    last = list(program[start:])
    return last if last and all(map(_understood, last)) else _apart(program)


def _apart(program: Sequence[str]) -> list[str]:
    """The options at the very end that are written --name value, when one of them can hardly be anybody else's."""
    start = len(program)
    while start > 2 and _understood(f"{program[start - 2]}={program[start - 1]}"):
        start -= 2
    flags = program[start::2]
    return list(program[start:]) if any(flag in _OURS for flag in flags) else []


def _understood(word: str) -> bool:
    flag, equals, value = word.partition("=")
    option = _option_of(flag)
    if option is None or not equals:
        return False
    try:
        given.parse_command_line({option.name: value})
    except OptionError:
        return False
    return True


def _option_of(flag: str) -> Option | None:
    found = (o for o in declared.OPTIONS if flag in o.flags + o.deprecated and flag.startswith("--") and o.grammar)
    return next(found, None)


def _is_level(value: str) -> bool:
    return value in _LEVELS or any(word in ("op", "kernel") for word in value.split(","))
