"""Prints what `make setup` installs besides torch, one requirement a line.

In: pyproject.toml and the names of extras. Out: build requirements, dependencies, the extras, and CMake and Ninja
when the machine has none that is new enough. Runs inside a fresh environment, so it may use nothing but pip's own
copy of tomli on Python 3.10.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    from pip._vendor import tomli as tomllib

ROOT = Path(__file__).resolve().parent.parent
OLDEST_CMAKE = (3, 20)


def has_cmake() -> bool:
    """Whether a CMake of OLDEST_CMAKE or later is on PATH."""
    cmake = shutil.which("cmake")
    if cmake is None:
        return False
    said = subprocess.run([cmake, "--version"], capture_output=True, text=True, check=False).stdout
    version = re.search(r"(\d+)\.(\d+)", said)
    return version is not None and (int(version.group(1)), int(version.group(2))) >= OLDEST_CMAKE


def main(extras: list[str]) -> int:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    project = settings["project"]
    wanted = [*settings["build-system"]["requires"], *project["dependencies"]]
    for extra in extras:
        wanted += project["optional-dependencies"][extra]
    if not has_cmake():
        wanted.append(f"cmake>={OLDEST_CMAKE[0]}.{OLDEST_CMAKE[1]}")
    if shutil.which("ninja") is None:
        wanted.append("ninja>=1.5")
    print("\n".join(dict.fromkeys(wanted)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
