"""What an installation must hold for a rank: the preload library beside _native, and an import that is light."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from msmemscope import _native
from msmemscope.collect.session import hook_library

ROOT = Path(__file__).resolve().parent.parent.parent
PTH_LINE = (ROOT / "packaging" / "msmemscope.pth").read_text(encoding="utf-8")


def run_python(program: str, **environment: str) -> str:
    """What a fresh interpreter prints; a traceback fails the test."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("MSMEMSCOPE_")}
    command = [sys.executable, "-c", program]
    return subprocess.run(command, capture_output=True, text=True, check=True, env={**kept, **environment}).stdout


def test_the_preload_library_lies_beside_native():
    library = Path(hook_library())
    assert library.is_file()
    assert library.parent == Path(_native.__file__).parent


@pytest.mark.skipif(shutil.which("readelf") is None, reason="readelf comes with the compiler's binutils")
def test_the_preload_library_needs_neither_python_nor_libstdcxx():
    said = subprocess.run(["readelf", "-d", hook_library()], capture_output=True, text=True, check=True).stdout
    needed = set(re.findall(r"\(NEEDED\).*\[(.+)\]", said))
    assert needed
    assert needed <= {"libc.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1", "ld-linux-aarch64.so.1"} | {
        "ld-linux-x86-64.so.2"
    }


def test_what_lies_beside_the_project_cannot_be_imported():
    """Numba takes a directory that is called coverage for the package."""
    found = run_python("import sys; print(*sys.path, sep='\\n')", PYTHONPATH="").splitlines()
    assert str(ROOT.parent) not in found


def test_the_import_is_light_and_starts_no_thread():
    heavy = ["click", "msgpack", "numpy", "pandas", "pyarrow", "rich", "scipy", "torch", "zmq"]
    program = f"""
import os, sys
import msmemscope
print([name for name in {heavy} if name in sys.modules], len(os.listdir("/proc/self/task")))
"""
    assert run_python(program) == "[] 1\n"


def test_the_pth_line_does_nothing_without_a_session():
    program = f"""
import sys
before = set(sys.modules)
exec({PTH_LINE!r})
print([name for name in sys.modules if "msmemscope" in name and name not in before])
"""
    assert run_python(program) == "[]\n"


def test_the_pth_line_survives_a_session_that_is_gone(tmp_path: Path):
    gone = str(tmp_path / "gone")
    program = f"sitedir = {str(tmp_path)!r}\nexec({PTH_LINE!r})\nprint('the program')"
    assert run_python(program, MSMEMSCOPE_SESSION=gone) == "the program\n"


@pytest.mark.parametrize("ours_is_whole", [True, False])
def test_the_pth_line_takes_the_package_beside_it_and_a_broken_one_is_one_line(tmp_path: Path, ours_is_whole: bool):
    site, hers = tmp_path / "site-packages", tmp_path / "hers"
    site.mkdir()
    (site / "msmemscope.pth").write_text(PTH_LINE)
    if ours_is_whole:
        (site / "msmemscope").symlink_to(ROOT / "msmemscope")
    (hers / "msmemscope").mkdir(parents=True)
    (hers / "msmemscope" / "__init__.py").write_text("raise ValueError('the folder of the user')\n")
    program = f"""
import site, sys
path = list(sys.path)
site.addsitedir({str(site)!r})
print(getattr(sys.modules.get("msmemscope"), "__file__", None), sys.path == [*path, {str(site)!r}])
"""
    environment = {**os.environ, "PYTHONPATH": str(hers), "MSMEMSCOPE_SESSION": "/nowhere"}

    done = subprocess.run(
        [sys.executable, "-S", "-c", program], capture_output=True, text=True, check=True, env=environment, cwd=tmp_path
    )

    ours = str(site / "msmemscope" / "__init__.py") if ours_is_whole else None
    assert done.stdout == f"{ours} True\n"
    assert len(done.stderr.splitlines()) == (0 if ours_is_whole else 1), done.stderr
