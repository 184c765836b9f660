"""How many nodes the job has, as its launcher is told, and which of them this is. A run of one node is not the whole
job, and must say so.

In: the command that is watched, the environment, and what is known of launchers (launchers/contract.py). Out: `Nodes`:
a number with the words that it was read from, or that it is not known and why. Nothing is guessed.
"""

from __future__ import annotations

import os
import re

from msmemscope.launchers.contract import LAUNCHERS, Launcher

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_MOST = 1 << 20
_PYTHON = re.compile(r"(python|pypy)[\d.]*\Z")


class Nodes:
    """expected: of the job; None: not known. source: who said so, or does not say. spans: may there be several? node:
    which this is, from 0 on. rendezvous: where they meet, the same text on each; "": not said."""

    def __init__(self, expected: int | None, source: str, *, spans: bool = True) -> None:
        self.expected = expected
        self.source = source
        self.spans = spans
        self.node: int | None = None
        self.rendezvous = ""

    def as_dict(self) -> dict[str, object]:
        return {
            "expected": self.expected,
            "source": self.source,
            "spans": self.spans,
            "node": self.node,
            "rendezvous": self.rendezvous,
        }


def nodes_of(argv: Sequence[str], environment: Mapping[str, str]) -> Nodes:
    """The first that says it: the command's launcher, a variable of the launcher that started us."""
    launcher, words = launcher_of(argv)
    nodes = (_by_command(launcher, words, environment) if launcher else None) or _by_environment(environment)
    if nodes is None and launcher:
        nodes = Nodes(None, f"{launcher.name} does not say")
    if nodes is None:
        program = os.path.basename(argv[0]) if argv else "the program"
        sizes = {size for one in LAUNCHERS if one.identity for size in one.identity.sizes}
        several = any((_number(environment.get(name, "")) or 1) > 1 for name in sizes)
        nodes = Nodes(None, f"{program} does not say", spans=several)
    if launcher:
        nodes.node = _from_zero(_said(words, launcher.node_rank, environment, launcher.node_rank_variable) or "")
        nodes.rendezvous = _said(words, launcher.rendezvous, environment, launcher.rendezvous_variable) or ""
    for one in LAUNCHERS:
        if nodes.node is None and one.identity is not None and one.identity.node:
            nodes.node = _from_zero(environment.get(one.identity.node, ""))
    return nodes


def launcher_of(argv: Sequence[str]) -> tuple[Launcher | None, list[str]]:
    """The launcher that a command line starts, and that launcher's own words; None for any other program."""
    words = list(argv)
    if words and _PYTHON.match(os.path.basename(words[0])):
        del words[0]
        while words and words[0].startswith("-") and words[0] != "-m":
            del words[0]
        words = words[1:] if words[:1] == ["-m"] else words
    name = os.path.basename(words[0]) if words else ""
    return next((one for one in LAUNCHERS if name in one.programs), None), words[1:]


def withheld(argv: Sequence[str]) -> str:
    """The option by which a command keeps our variables from its ranks, as it stands there; "" for none."""
    launcher, words = launcher_of(argv)
    for name, passing in launcher.withholds.items() if launcher else ():
        value = _option(words, name)
        if passing and value is not None and passing not in value.split(","):
            return f"{name}={value}"
        if not passing and name in words:
            return name
    return ""


def apart(argv: Sequence[str]) -> str:
    """Why nothing of what a command starts is watched, and what to write instead; "" where it is."""
    launcher, words = launcher_of(argv)
    for one in launcher.apart if launcher else ():
        if tuple(words[: len(one.words)]) == one.words and not any(option in words for option in one.unless):
            return one.advice
    return ""


def _by_command(launcher: Launcher, words: list[str], environment: Mapping[str, str]) -> Nodes | None:
    if launcher.workers:
        total, here = (_number(_option(words, name) or launcher.workers_default) for name in launcher.workers)
        if total is None or here is None:
            return None
        told = (f"{name}={number}" for name, number in zip(launcher.workers, (total, here), strict=True))
        return Nodes(-(-total // here), f"{launcher.name} {' '.join(told)}")
    given = _said(words, launcher.nodes, environment, launcher.nodes_variable)
    if given is None:
        default = _number(launcher.nodes_default)
        return None if default is None else Nodes(default, f"{launcher.name} without {launcher.nodes[0]}")
    return Nodes(_number(given), f"{launcher.name} {launcher.nodes[0]}={given}")


def _by_environment(environment: Mapping[str, str]) -> Nodes | None:
    """What the launcher that started this process has told it."""
    for name in (name for one in LAUNCHERS for name in one.told_nodes):
        number = _number(environment.get(name, ""))
        if number is not None:
            return Nodes(number, f"{name}={number}")
    for identity in (one.identity for one in LAUNCHERS if one.identity is not None):
        world, local = identity.sizes[0], identity.local_size
        total, here = _number(environment.get(world, "")), _number(environment.get(local, ""))
        if total is not None and here is not None:
            return Nodes(-(-total // here), f"{world}={total}, {local}={here}")
    return None


def _said(words: list[str], options: Sequence[str], environment: Mapping[str, str], variable: str) -> str | None:
    given = _option(words, *options)
    return given if given is not None else environment.get(variable) if variable else None


def _option(words: list[str], *names: str) -> str | None:
    """The value of the first option that is there, in either form. Words behind the launcher's program are not
    looked for: the launcher's own come first."""
    for at, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name in names:
            return value if equals else (words[at + 1] if at + 1 < len(words) else None)
        if len(name) > 2 and name[:2] in names and name[1] != "-":
            return word[2:]  # -N4
    return None


def _number(text: str) -> int | None:
    return int(text) if text.isdecimal() and text.isascii() and 0 < int(text[:8]) < _MOST else None


def _from_zero(text: str) -> int | None:
    return 0 if text == "0" else _number(text)
