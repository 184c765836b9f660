"""The control group whose memory limit is the nearest to a process: what it may use, uses, and whom the kernel killed.

In: a process id. Out: numbers of /sys/fs/cgroup, version 2 (memory.max) or 1 (memory.limit_in_bytes). A container has
such a group; so have jobs of Slurm and Kubernetes. What cannot be read is as if there were no limit: a node without
control groups, a group that lies above the root of this mount.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
PROC = Path("/proc")
_NO_LIMIT = 1 << 60  # version 1 says so by a number of that size


class MemoryGroup:
    """One group with a limit."""

    def __init__(self, path: Path, *, is_old: bool) -> None:
        self._path = path
        names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "memory.oom_control")
        self._limit, self._usage, self._events = names if is_old else ("memory.max", "memory.current", "memory.events")

    @property
    def limit(self) -> int | None:
        """Bytes; None: there is none."""
        found = _number(self._path / self._limit)
        return found if found is not None and found < _NO_LIMIT else None

    @property
    def used(self) -> int | None:
        """Bytes of all its processes, what the kernel caches for them included."""
        return _number(self._path / self._usage)

    @property
    def kills(self) -> int:
        """Processes in it that the kernel has killed so far for lack of memory; in version 2 of groups below too."""
        with suppress(OSError, ValueError):
            for line in (self._path / self._events).read_text(encoding="ascii").splitlines():
                name, _, value = line.partition(" ")
                if name == "oom_kill":
                    return int(value)
        return 0


def memory_group(pid: int, *, root: Path = ROOT, proc: Path = PROC) -> MemoryGroup | None:
    """That of the smallest limit among the process's group and those above it; None where there is no limit."""
    found = [group for group in _groups(pid, root, proc) if group.limit is not None]
    return min(found, key=lambda group: group.limit or 0, default=None)


def _groups(pid: int, root: Path, proc: Path) -> list[MemoryGroup]:
    try:
        lines = (proc / str(pid) / "cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    groups = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        is_old = "memory" in controllers.split(",")
        if controllers and not is_old:
            continue
        mount = root / "memory" if is_old else root
        place = mount / path.lstrip("/")
        if ".." in place.parts or not place.is_dir():
            place = mount  # it is called otherwise where we stand
        groups += [MemoryGroup(one, is_old=is_old) for one in (place, *place.parents) if one.is_relative_to(mount)]
    return groups


def _number(file: Path) -> int | None:
    try:
        return int(file.read_text(encoding="ascii"))
    except (OSError, ValueError):  # gone, or "max"
        return None
