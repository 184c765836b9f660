"""Can what the services need be imported? Tried in a process of its own, because a failed import leaves its traces.

In: nothing. Out: why not, package by package. pip does not see every case: a pyarrow that was built for another numpy
is installed without a word. Asked before a program is started, and by `msmemscope doctor`. That all was well is noted
in the user's cache until one of the packages changes, since the trial takes as long as starting a service.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from msmemscope.errors import MemscopeError
from msmemscope.isolated import environment_of_service, isolated_command

# Distribution -> what we import of it.
NEEDED = {
    "numpy": ["numpy"],
    "pyarrow": ["pyarrow.parquet", "pyarrow.compute"],
    "pyzmq": ["zmq"],
    "msgpack": ["msgpack"],
    "click": ["click"],
    "rich": ["rich.console"],
}
# With numpy 1, which MindSpore asks for: the last pyarrow that was built for both.
WITH_NUMPY_1 = "pip install 'msmemscope[numpy1]'"
_LIMIT_S = 120.0
_TRIAL = """
import importlib, json, sys
found = {}
for name, modules in json.loads(sys.argv[1]).items():
    try:
        for module in modules:
            importlib.import_module(module)
    except Exception as error:
        found[name] = " ".join(str(error).split()) or type(error).__name__
print("\\n" + json.dumps(found))
"""


def failed_imports() -> dict[str, str]:
    """Distribution -> why it cannot be imported; empty when all is well."""
    command = isolated_command("-c", _TRIAL, json.dumps(NEEDED))
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_LIMIT_S, check=False, env=environment_of_service()
        )
        found = json.loads(done.stdout.rstrip().rsplit("\n", 1)[-1])
    except (OSError, subprocess.TimeoutExpired) as error:
        raise MemscopeError(f"{sys.executable} cannot be started: {error}") from None
    except ValueError:  # an import ended the process
        last = done.stderr.strip().rsplit("\n", 1)[-1] or f"exit status {done.returncode}"
        return {"numpy and pyarrow": last}
    return {str(name): str(why) for name, why in found.items()}


def advice(name: str, failed: dict[str, str]) -> str:
    """What to type."""
    if name == "pyarrow" and "numpy" in failed[name].lower() and "numpy" not in failed:
        return WITH_NUMPY_1
    return f"pip install --force-reinstall {name}" if find_spec(NEEDED.get(name, [name])[0]) else f"pip install {name}"


def require_imports() -> None:
    """Raises MemscopeError, with one line that says what to install, when a service could not run."""
    noted = _note()
    with suppress(OSError):  # the home of another user
        if noted is not None and noted.exists():
            return
    failed = failed_imports()
    for name, why in failed.items():
        raise MemscopeError(
            f"{name} cannot be imported ({why[:200]}), so nothing could be recorded: {advice(name, failed)}"
        )
    with suppress(OSError):
        if noted is not None:
            noted.parent.mkdir(parents=True, exist_ok=True)
            noted.touch()


def _note() -> Path | None:
    """The file that says that these very packages could be imported by this very Python; None when one is missing."""
    digest = hashlib.sha256(f"{sys.executable}\0{sys.version}".encode())
    for modules in NEEDED.values():
        spec = find_spec(modules[0].partition(".")[0])
        if spec is None or spec.origin is None:
            return None
        facts = Path(spec.origin).stat()
        digest.update(f"{spec.origin}\0{facts.st_ino}\0{facts.st_size}\0{facts.st_mtime_ns}\0".encode())
    chosen = os.environ.get("XDG_CACHE_HOME", "")
    try:
        base = Path(chosen) if chosen.startswith("/") else Path.home() / ".cache"
    except RuntimeError:  # no home
        return None
    return base / "msmemscope" / "imports" / digest.hexdigest()[:16]
