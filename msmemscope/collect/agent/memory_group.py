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
        self.path = path
        self._caches = ("total_inactive_file", "total_active_file") if is_old else ("inactive_file", "active_file")
        names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "memory.oom_control")
        self._limit, self._usage, self._events = names if is_old else ("memory.max", "memory.current", "memory.events")

    @property
    def limit(self) -> int | None:
        """Bytes; None: there is none."""
        found = _number(self.path / self._limit)
        return found if found is not None and found < _NO_LIMIT else None

    @property
    def used(self) -> int | None:
        """Bytes of all its processes, without the files that the kernel caches for them: those it gives up at the
        limit, so that a job that reads its data is not near it."""
        used = _number(self.path / self._usage)
        return None if used is None else max(used - sum(self._stat(self.path / "memory.stat", self._caches)), 0)

    @property
    def kills(self) -> int:
        """Processes in it that the kernel has killed so far for lack of memory; in version 2 of groups below too."""
        return sum(self._stat(self.path / self._events, ("oom_kill",)))

    @staticmethod
    def _stat(file: Path, names: tuple[str, ...]) -> list[int]:
        """The values of these lines; none where the file cannot be read."""
        with suppress(OSError, ValueError):
            lines = dict(line.split(" ", 1) for line in file.read_text(encoding="ascii").splitlines() if " " in line)
            return [int(lines[name]) for name in names if name in lines]
        return []


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
