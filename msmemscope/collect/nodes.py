"""How many nodes the job has, as its launcher is told. A run of one node is not the whole job, and must say so.

In: the command that is watched, and the environment. Out: `Nodes`: a number with the words that it was read from, or
that it is not known and why. Nothing is guessed: a launcher whose default depends on files that we do not read is one
that does not say.
"""

from __future__ import annotations

import os
import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_MOST = 1 << 20
_PYTHON = re.compile(r"(python|pypy)[\d.]*\Z")
# Names of programs and modules -> the launcher.
_LAUNCHERS = {
    "torchrun": "torchrun",
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torchrun",
    "msrun": "msrun",
    "mindspore.parallel.cluster.run": "msrun",
    "accelerate": "accelerate",
    "accelerate.commands.launch": "accelerate",
    "deepspeed": "deepspeed",
    "deepspeed.launcher.runner": "deepspeed",
    "srun": "srun",
    "mpirun": "mpirun",
    "mpiexec": "mpiexec",
    "mpiexec.hydra": "mpiexec",
    "ray": "ray",
}
# Of the environment of a process that was launched already: how many nodes, for those that say it.
_VARIABLES = ("SLURM_STEP_NUM_NODES", "SLURM_NNODES", "SLURM_JOB_NUM_NODES")


class Nodes:
    """expected: of the job; None: not known. source: who said so, or does not say. spans: may there be several?"""

    def __init__(self, expected: int | None, source: str, *, spans: bool = True) -> None:
        self.expected = expected
        self.source = source
        self.spans = spans

    def as_dict(self) -> dict[str, object]:
        return {"expected": self.expected, "source": self.source, "spans": self.spans}


def nodes_of(argv: Sequence[str], environment: Mapping[str, str]) -> Nodes:
    """The first that says it: the command's launcher, a variable of the launcher that started us."""
    launcher, words = _launcher_of(argv)
    told = _by_command(launcher, words, environment) if launcher else None
    if told is not None:
        return told
    for name in _VARIABLES:
        number = _number(environment.get(name, ""))
        if number is not None:
            return Nodes(number, f"{name}={number}")
    for world, local in (("WORLD_SIZE", "LOCAL_WORLD_SIZE"), ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE")):
        total, here = _number(environment.get(world, "")), _number(environment.get(local, ""))
        if total is not None and here is not None:
            return Nodes(-(-total // here), f"{world}={total}, {local}={here}")
    if launcher:
        return Nodes(None, f"{launcher} does not say")
    program = os.path.basename(argv[0]) if argv else "the program"
    several = any((_number(environment.get(name, "")) or 1) > 1 for name in ("WORLD_SIZE", "MS_WORKER_NUM"))
    return Nodes(None, f"{program} does not say", spans=several)


def _launcher_of(argv: Sequence[str]) -> tuple[str, list[str]]:
    """Its name in the table and its own words; "" for any other program."""
    words = list(argv)
    if words and _PYTHON.match(os.path.basename(words[0])):
        del words[0]
        while words and words[0].startswith("-") and words[0] != "-m":
            del words[0]
        words = words[1:] if words[:1] == ["-m"] else words
    launcher = _LAUNCHERS.get(os.path.basename(words[0]), "") if words else ""
    return launcher, words[1:]


def _by_command(launcher: str, words: list[str], environment: Mapping[str, str]) -> Nodes | None:
    if launcher == "torchrun":
        given = _option(words, "--nnodes") or environment.get("PET_NNODES")
        if given is None:
            return Nodes(1, "torchrun without --nnodes")
        if _number(given) is None:
            return Nodes(None, f"torchrun --nnodes={given}")
        return Nodes(_number(given), f"torchrun --nnodes={given}")
    if launcher == "msrun":  # both are 8 by default
        total = _number(_option(words, "--worker_num") or "8")
        here = _number(_option(words, "--local_worker_num") or "8")
        if total is None or here is None:
            return None
        return Nodes(-(-total // here), f"msrun --worker_num={total} --local_worker_num={here}")
    option = {
        "accelerate": ("--num_machines", "--num-machines"),
        "deepspeed": ("--num_nodes",),
        "srun": ("--nodes", "-N"),
    }.get(launcher, ())
    number = _number(_option(words, *option) or "")
    return None if number is None else Nodes(number, f"{launcher} {option[0]}={number}")


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
