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
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
