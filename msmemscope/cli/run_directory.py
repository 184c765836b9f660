"""The RUN argument of the subcommands: a run directory, or one line that says where the runs are."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Any

from msmemscope.errors import RunError
from msmemscope.options.declared import Config
from msmemscope.tables.run_files import Anchor, inspect


def open_run_directory(text: str, *, to_write: bool = False) -> Path:
    """`text` as the path of a run that can be worked on (run_files.py). Raises RunError when it is none; an output
    directory's runs are then named."""
    path = Path(text)
    if not path.exists():
        raise RunError(f"{text} is not there: name a run directory, such as memscopeDumpResults/run_...")
    if not path.is_dir():
        raise RunError(f"{text} is not a run but a file: name the run directory, the one that holds run.json")
    if not os.access(path, os.R_OK | os.X_OK):
        raise RunError(f"{text} cannot be read: change its mode or ask its owner")
    if os.path.lexists(path / "run.json"):
        inspect(path, to_write=to_write)
        return path
    runs = sorted((found.parent for found in path.glob("*/run.json")), key=lambda run: run.name)
    if runs:
        kind = "one run" if len(runs) == 1 else f"{len(runs)} runs"
        raise RunError(f"{text} is not a run, but holds {kind}: name one, such as {runs[-1]}")
    raise RunError(f"{text} is not a run: it holds no run.json; name a directory that msmemscope wrote")


def is_being_recorded(run: Path) -> bool:
    """Whether an aggregator is at work on it: it holds a lock on the directory (aggregate/run_place.py)."""
    try:
        directory = os.open(run, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(directory, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(directory)
    return False


def read_run_info(run: Path) -> dict[str, Any]:
    """run.json. Raises RunError when it is not one."""
    try:
        info = Anchor(run).json("run.json")
    except OSError as error:
        raise RunError(f"cannot read {run / 'run.json'}: {error.strerror}") from None
    if not isinstance(info, dict):
        raise RunError(f"{run / 'run.json'} is damaged: it holds no object")
    return info


def config_of_run(info: dict[str, Any]) -> Config:
    """The Config under which the run was recorded; the defaults when run.json holds none. RunError for a wrong one."""
    config = info.get("config")
    try:
        return Config.from_dict(config) if isinstance(config, dict) else Config()
    except ValueError as error:
        raise RunError(f"run.json holds a configuration that is none: {error}") from None
