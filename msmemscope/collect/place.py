"""Where a session's directory, with the rings of all its processes, goes: /dev/shm, or a disk when that is small.

In: the size of one ring. Out: a directory that exists and the sentence to tell the user, if any. Used by whoever
makes the session directory (the supervisor, or the first process of a node) and by `msmemscope doctor`.
"""

from __future__ import annotations

import os

SHARED_MEMORY = "/dev/shm"
LEAST_OUTPUT_BYTES = 64 << 20  # with less free space beside the outputs no run is begun
RINGS_WANTED = 16  # room for a node's ranks and their children; a container's default of 64 MiB holds four


class Place:
    """A directory for sessions, its free bytes, and a warning when it is not the best one."""

    def __init__(self, path: str, free: int, warning: str = "") -> None:
        self.path = path
        self.free = free
        self.warning = warning


def free_bytes(path: str) -> int:
    """Bytes that this user can still write below `path`; -1 when it is no directory to write in."""
    try:
        facts = os.statvfs(path)
    except OSError:
        return -1
    if not os.path.isdir(path) or not os.access(path, os.W_OK | os.X_OK):
        return -1
    return facts.f_bavail * facts.f_frsize


def choose_place(ring_bytes: int, shared_memory: str = SHARED_MEMORY, disks: tuple[str, ...] | None = None) -> Place:
    """The place for a session whose rings take `ring_bytes` each.

    Filling /dev/shm would kill the program (SIGBUS in whatever else uses it, such as DataLoader workers), so it
    is taken only with room to spare. Otherwise the first of $TMPDIR, /tmp and /var/tmp with room, or the roomiest.
    Raises OSError when none of them can be written.
    """
    wanted = RINGS_WANTED * ring_bytes
    free = free_bytes(shared_memory)
    if free >= wanted:
        return Place(shared_memory, free)
    if free < 0:
        fault = f"{shared_memory} cannot be written"
    else:
        fault = f"{shared_memory} has {free >> 20} MiB free, {wanted >> 20} MiB are wanted"
    if disks is None:
        disks = tuple(path for path in (os.environ.get("TMPDIR"), "/tmp", "/var/tmp") if path)
    rooms = [(path, free_bytes(path)) for path in disks]
    best = next((room for room in rooms if room[1] >= wanted), max(rooms, key=lambda room: room[1], default=("", -1)))
    if best[1] < 0:
        raise OSError(f"{fault}, and neither can {', '.join(disks)}: make /dev/shm larger or set TMPDIR")
    advice = "make it larger (docker run --shm-size=1g) or give --ring-size a smaller number"
    return Place(best[0], best[1], f"{fault}: events go through {best[0]}, which is slower; {advice}")
