"""torchrun and `python -m torch.distributed.run`: recognised as a launcher of ranks.

Its elastic agent has no RANK and is not a rank; the workers inherit the environment, so nothing in the command
line changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath

_MODULES = {"torch.distributed.run", "torch.distributed.launch"}


def recognises(argv: Sequence[str]) -> bool:
    """Whether `argv` starts torchrun.

    >>> recognises(["torchrun", "--nproc-per-node", "4", "train.py"])
    True
    >>> recognises(["python3", "-u", "-m", "torch.distributed.run", "train.py"])
    True
    >>> recognises(["python", "train.py"])
    False
    """
    name = PurePath(argv[0]).name
    if name == "torchrun":
        return True
    if not name.startswith("python"):
        return False
    for position, word in enumerate(argv[1:], start=1):
        if word == "-m":
            return position + 1 < len(argv) and argv[position + 1] in _MODULES
        if not word.startswith("-"):
            # `python /path/bin/torchrun ...`, as a shebang or a module runner starts it
            return PurePath(word).name == "torchrun"
    return False
