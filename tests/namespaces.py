"""What the kernel lets this user do: root in a container may not do all that root may."""

from __future__ import annotations

import subprocess
from functools import cache

import pytest


@cache
def may(*command: str) -> bool:
    """Whether a command that harms nobody ends well."""
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except OSError:
        return False


may_mount = pytest.mark.skipif(
    not may("unshare", "-m", "mount", "-t", "tmpfs", "tmpfs", "/tmp"), reason="this user may not mount"
)
may_cut_off = pytest.mark.skipif(
    not may("unshare", "--net", "true"), reason="this user may not make a network namespace"
)
