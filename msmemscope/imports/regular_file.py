"""Files of other tools are opened here: what is no file would be waited for, or read without end."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import IO


def open_regular(path: Path) -> IO[bytes]:
    """For reading. OSError for one that is not there, may not be read or is no regular file."""
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # without O_NONBLOCK a FIFO is waited for
    try:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise OSError(0, "it is no regular file")
    except OSError:
        os.close(file)
        raise
    return os.fdopen(file, "rb")
