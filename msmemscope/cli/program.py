"""Finds the program to run, and says beforehand why it could not be watched.

In: the first word of the user's command. Out: its path, or a ProgramError with the shell's exit status (127 not
found, 126 not executable); and the reasons why the loader would ignore a preloaded library in it.
"""

from __future__ import annotations

import os
import platform
import shutil
import stat
import struct
from pathlib import Path

from msmemscope.errors import UsageError

_MACHINES = {62: "x86_64", 183: "aarch64"}  # e_machine of elf.h
_PT_INTERP = 3
_MAX_INTERPRETERS = 4  # the kernel follows a #! this deep


class ProgramError(UsageError):
    """The program cannot be started."""

    def __init__(self, text: str, exit_status: int) -> None:
        super().__init__(text)
        self.exit_status = exit_status


def find_program(name: str) -> str:
    """The path that running `name` would execute."""
    found = shutil.which(name)
    if found:
        return found
    candidates = [Path(name)]
    if "/" not in name:
        candidates = [Path(entry or ".") / name for entry in os.environ.get("PATH", os.defpath).split(os.pathsep)]
    present = next((path for path in candidates if path.exists()), None)
    if present is not None:
        why = "is a directory" if present.is_dir() else "is not executable"
        advice = f"run it with: msmemscope python {name}" if name.endswith(".py") else f"try: chmod +x {present}"
        if present.is_dir():
            advice = "name a program"
        raise ProgramError(f"{present} {why}: {advice}", 126)
    if name.endswith(".py") and Path(name).is_file():
        raise ProgramError(f"program {name} is not in PATH: run it with: msmemscope python {name}", 127)
    raise ProgramError(f"program {name} is not there: check its name, or give its full path", 127)


def preload_obstacles(program: str) -> list[str]:
    """Why a library cannot be preloaded into `program`, a path; empty when it can, or when its file says
    nothing about it. A script is judged by its interpreter."""
    path = Path(program)
    for _ in range(_MAX_INTERPRETERS):
        try:
            with path.open("rb") as file:
                head = file.read(4096)
            facts = path.stat()
        except OSError:
            return []  # not readable is not a reason: the kernel may still run it
        if not head.startswith(b"#!"):
            return _elf_obstacles(path, head, facts)
        words = head[2:].split(b"\n", 1)[0].split()
        if not words:
            return []
        path = Path(os.fsdecode(words[0]))
        if path.name == "env":
            name = next((word for word in words[1:] if not word.startswith(b"-") and b"=" not in word), b"")
            path = Path(shutil.which(os.fsdecode(name)) or "env")
    return []


def _elf_obstacles(path: Path, head: bytes, facts: os.stat_result) -> list[str]:
    if len(head) < 64 or head[:4] != b"\x7fELF":
        return []
    obstacles = []
    setuid = facts.st_mode & stat.S_ISUID and facts.st_uid != os.geteuid()
    setgid = facts.st_mode & stat.S_ISGID and facts.st_gid != os.getegid()
    if setuid or setgid:
        obstacles.append(f"{path} is setuid or setgid, so the loader ignores LD_PRELOAD")
    if head[4] != 2 or head[5] != 1:
        return [*obstacles, f"{path} is not a 64-bit little-endian program"]
    (machine,) = struct.unpack_from("<H", head, 18)
    if _MACHINES.get(machine) != platform.machine():
        obstacles.append(f"{path} is for {_MACHINES.get(machine, f'machine {machine}')}, not {platform.machine()}")
    (table,) = struct.unpack_from("<Q", head, 32)
    entry_bytes, entries = struct.unpack_from("<HH", head, 54)
    places = [table + i * entry_bytes for i in range(entries)]
    kinds = [struct.unpack_from("<I", head, at)[0] for at in places if at + 4 <= len(head)]
    if len(kinds) == entries and _PT_INTERP not in kinds:
        obstacles.append(f"{path} is statically linked, so nothing can be preloaded into it")
    return obstacles
