"""Where upstream's files of a process go: `msmemscope_<pid>_<time>_ascend`, directly below the output directory.

Upstream's scripts look for `memscopeDumpResults/msmemscope_*_ascend/device_*`, so these directories stand beside the
run and not in it. Runs share the place, and a pid with a second repeats (containers, many hosts): a directory belongs
to the session that its config.json names, is written again by that session alone, and another takes the next second.
"""

from __future__ import annotations

import itertools
import json
import os
import stat
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from msmemscope.options.config_json import config_json_text, write_config_json
from msmemscope.options.settings import Config
from msmemscope.tables.run_files import Anchor

if TYPE_CHECKING:
    from msmemscope.tables.process import Process

_MODE = 0o750  # of directories, as upstream's; the files in them are 0600
_CONFIG = "config.json"
_NO_RING = '"ring": ""'  # cannot stand within a text of JSON, whose quotes are escaped
_MOST_BYTES = 1 << 20  # of a config.json


class ProcessDirectories:
    """The directories of one session's processes below `out`."""

    def __init__(self, out: Path, session: str, config: Config | None = None) -> None:
        self._out = out
        self._session = session
        # Of thousands of processes only the ring differs.
        self._config_json = config_json_text(config or Config(), session=session, ring="")
        self._lock = threading.Lock()
        self._claimed: dict[int, Path] = {}
        self._taken: set[tuple[int, int]] = set()  # pid and second in the names of those: not looked for on disk

    def device(self, process: Process, home: str, leaf: str = "dump") -> Path:
        """`.../device_<home>/<leaf>`, made if need be. OSError when it cannot be. Several threads may ask."""
        with self._lock:
            directory = self._claim(process)
        for name in (f"device_{home}", leaf):
            directory /= name
            _make(directory)
        return directory

    def discard(self) -> None:
        """Removes what was made here and holds no file."""
        for directory in self._claimed.values():
            with suppress(OSError):
                for dump in directory.glob("device_*/dump"):
                    dump.rmdir()
                    dump.parent.rmdir()
                if [entry.name for entry in directory.iterdir()] == [_CONFIG]:
                    (directory / _CONFIG).unlink()
                    directory.rmdir()

    def _claim(self, process: Process) -> Path:
        if process.ring not in self._claimed:
            self._out.mkdir(mode=_MODE, parents=True, exist_ok=True)
            names = ((name, where) for name, where in self._names(process) if self._is_ours(name, process.ring))
            directory, place = next(names)
            self._taken.add(place)
            text = self._config_json.replace(_NO_RING, f'"ring": "{process.ring:016x}"')
            write_config_json(text, os.fspath(directory / _CONFIG))
            self._claimed[process.ring] = directory
        return self._claimed[process.ring]

    def _names(self, process: Process) -> Iterator[tuple[Path, tuple[int, int]]]:
        """Names that another process of ours has not taken, and the pid and second in each."""
        for second in itertools.count(_second(process)):
            if (process.pid, second) not in self._taken:
                yield self._out / f"msmemscope_{process.pid}_{_in_names(second)}_ascend", (process.pid, second)

    def _is_ours(self, directory: Path, ring: int) -> bool:
        try:
            directory.mkdir(mode=_MODE)
        except FileExistsError:
            return _owner(directory) == (self._session, ring)
        return True


def time_in_names(process: Process) -> str:
    """When the process began to be watched, in local time, as upstream writes it into names."""
    return _in_names(_second(process))


def _second(process: Process) -> int:
    return (process.created_ns + process.wall_offset_ns) // 1_000_000_000


def _in_names(second: int) -> str:
    return time.strftime("%Y%m%d%H%M%S", time.localtime(second))


def _make(directory: Path) -> None:
    """A link in the place of a directory would lead elsewhere."""
    try:
        directory.mkdir(mode=_MODE)
    except FileExistsError:
        if not stat.S_ISDIR(directory.lstat().st_mode):
            raise


def _owner(directory: Path) -> tuple[str, int] | None:
    """The session and ring whose directory it is; None when nobody says, as in upstream's own."""
    try:
        if not stat.S_ISDIR(directory.lstat().st_mode):
            return None
        with Anchor(directory).open(_CONFIG) as file:
            ours = json.loads(file.read(_MOST_BYTES))["msmemscope"]
            return str(ours["session"]), int(ours["ring"], 16)
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
