"""Small libraries and programs that tests build: the machine's compiler, or a skip that says what was to be built."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from msmemscope.collect import torch_ext


def c_compiler(what: str) -> str:
    return shutil.which("cc") or shutil.which("gcc") or pytest.skip(f"no C compiler, which builds {what}")


def cxx_compiler(what: str) -> str:
    return shutil.which("c++") or shutil.which("g++") or pytest.skip(f"no C++ compiler, which builds {what}")


def needs_observer() -> None:
    """Skips where nothing can build what sees torch's operators."""
    if torch_ext.find_compiler() is None:
        pytest.skip("no C++ compiler, which builds the observer of operators")


def shared_library(compiler: str, source: Path, made: Path, *options: str) -> Path:
    """Compiles `source` into the shared library `made`."""
    subprocess.run([compiler, "-O1", "-shared", "-fPIC", *options, str(source), "-o", str(made)], check=True)
    return made
