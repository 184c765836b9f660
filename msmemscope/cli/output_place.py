"""Makes sure, before the program starts, that the output directory can take a run.

In: the absolute path of --output-path. Out: a UsageError with one line when nothing could be written there; sentences
about what is merely doubtful. A directory that is missing is made for the trial only: a program that records nothing
leaves nothing.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from pathlib import Path

from msmemscope.collect.output_directory import try_again
from msmemscope.collect.place import LEAST_OUTPUT_BYTES
from msmemscope.errors import UsageError

LITTLE_FREE_BYTES = 256 << 20


def prepare_output(directory: str) -> list[str]:
    """Tries to make `directory`, when it is missing, and a write in it. Returns warnings."""
    path = Path(directory)
    try:
        facts, space = try_again(lambda: _try(path))
    except FileExistsError:
        raise UsageError(f"--output-path {path} is a file: name a directory") from None
    except NotADirectoryError:
        raise UsageError(f"--output-path {path} leads through a file: name another directory") from None
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise UsageError(f"--output-path {path} is full: free some space or name another directory") from None
        if error.errno == errno.EFBIG:
            raise UsageError("the limit on the size of files is too small for a run: see ulimit -f") from None
        raise UsageError(
            f"--output-path {path} cannot be used ({error.strerror}): name a directory that you can read and write"
        ) from None
    free = space.f_bavail * space.f_frsize
    if free < LEAST_OUTPUT_BYTES:
        raise UsageError(
            f"--output-path {path} has only {free >> 20} MiB free, and a run needs {LEAST_OUTPUT_BYTES >> 20}: "
            "free some space or name another directory"
        )
    warnings = []
    if free < LITTLE_FREE_BYTES:
        warnings.append(f"--output-path {path} has only {free >> 20} MiB free")
    if facts.st_uid != os.geteuid():
        warnings.append(f"--output-path {path} belongs to another user")
    if facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not facts.st_mode & stat.S_ISVTX:
        warnings.append(f"--output-path {path} can be written by others")
    return warnings


def _try(path: Path) -> tuple[os.stat_result, os.statvfs_result]:
    """What the directory is, and what room it has. OSError where nothing can be written there."""
    missing = [one for one in (path, *path.parents) if not os.path.lexists(one)]
    try:
        path.mkdir(mode=0o750, parents=True, exist_ok=True)
        facts = path.stat()
        if not os.access(path, os.R_OK | os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        # Only a write finds a read-only mount, a full disk and a used-up quota.
        probe = path / f".msmemscope-{os.getpid()}~"
        descriptor = os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        try:
            os.write(descriptor, bytes(4096))
        finally:
            os.close(descriptor)
            probe.unlink()
        return facts, os.statvfs(path)
    finally:
        with suppress(OSError):  # not made, or in use by now
            for one in missing:
                one.rmdir()
