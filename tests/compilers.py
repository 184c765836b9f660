"""Small libraries and programs that tests build: the machine's compiler, or a skip that says what was to be built."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest


def c_compiler(what: str) -> str:
    return shutil.which("cc") or shutil.which("gcc") or pytest.skip(f"no C compiler, which builds {what}")


def cxx_compiler(what: str) -> str:
    return shutil.which("c++") or shutil.which("g++") or pytest.skip(f"no C++ compiler, which builds {what}")


def shared_library(compiler: str, source: Path, made: Path, *options: str) -> Path:
    """Compiles `source` into the shared library `made`."""
    subprocess.run([compiler, "-O1", "-shared", "-fPIC", *options, str(source), "-o", str(made)], check=True)
    return made
