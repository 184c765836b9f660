"""Looks at an installed msmemscope: every file where it must be. Run by `make test-wheel`, outside the source tree.

Needs the package only, none of its dependencies.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path


def main() -> int:
    site = Path(sysconfig.get_path("platlib"))
    package = site / "msmemscope"
    native = list(package.glob("_native*.so"))
    wanted = [
        site / "msmemscope.pth",
        package / "libascend_kernel_hook.so",
        package / "launchers" / "__init__.py",
        package / "py.typed",
        package / "simulator" / "CMakeLists.txt",
        package / "torch_ext" / "observer.cpp",
        package / "torch_ext" / "undeclared.inc",
        package / "simulator" / "python" / "mstx.py",
        package / "vocabulary.py",
        *(native or [package / "_native.so"]),
    ]
    missing = [path for path in wanted if not path.is_file()]
    for path in missing:
        print(f"not installed: {path.relative_to(site)}", file=sys.stderr)
    # -I: neither the current directory nor PYTHONPATH may help.
    program = (
        "import msmemscope, msmemscope._native, msmemscope._kernel, msmemscope.launchers; print(msmemscope.__file__)"
    )
    environment = {name: value for name, value in os.environ.items() if name != "MSMEMSCOPE_SESSION"}
    found = subprocess.run(
        [sys.executable, "-I", "-c", program], capture_output=True, text=True, check=False, env=environment
    )
    if found.returncode != 0 or Path(found.stdout.strip()).parent != package:
        print(found.stdout + found.stderr, file=sys.stderr)
        return 1
    return 1 if missing or not brought_without_pth(package, environment) or not sourced(package) else 0


def sourced(package: Path) -> bool:
    """The command can be sourced, and finds the library to preload with the Python that it was installed for."""
    command = Path(sysconfig.get_path("scripts")) / "msmemscope"
    words = f"unset LD_PRELOAD; source {command} --load-api-env && printenv LD_PRELOAD"
    said = subprocess.run(["bash", "-c", words], capture_output=True, text=True, check=False)
    if said.stdout.strip() != str(package / "libascend_kernel_hook.so"):
        print(f"{command} --load-api-env: {said.stdout}{said.stderr}", file=sys.stderr)
        return False
    return True


def brought_without_pth(package: Path, environment: dict[str, str]) -> bool:
    """A launched Python that reads no .pth file (-S) gets the Python side from the preloaded library, at the first
    extension module that it imports, and keeps its own sys.path and __main__."""
    program = (
        "import sys, _ctypes\n"
        "print('msmemscope.collect.rank.bootstrap' in sys.modules, [p for p in sys.path if 'site-packages' in p], "
        "sorted(name for name in vars() if not name.startswith('_')))"
    )
    launched = {
        **environment,
        "LD_PRELOAD": str(package / "libascend_kernel_hook.so"),
        "MSMEMSCOPE_SESSION": "/nowhere",
    }
    found = subprocess.run(
        [sys.executable, "-S", "-c", program], capture_output=True, text=True, check=False, env=launched
    )
    if found.stdout.strip() != "True [] ['sys']":
        print(f"without .pth: {found.stdout}{found.stderr}", file=sys.stderr)
        return False
    return True


if __name__ == "__main__":
    sys.exit(main())
