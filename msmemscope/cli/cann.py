"""The part of `msmemscope doctor` about Ascend: whether CANN is here, and what each source needs of it.

In: the environment, and a process of its own that loads the libraries, because loading may fail in any way. Out: lines
of the report. A machine without CANN gets one line: nothing is wrong there.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from msmemscope.cli.report_line import Line
from msmemscope.collect.session import HOOK_LIBRARY, hook_library
from msmemscope.errors import MemscopeError
from msmemscope.isolated import environment_of_service, isolated_command
from msmemscope.text import counted

PROBE_SECONDS = 60
# Library -> what is recorded by it, and what to do when it is not there.
LIBRARIES = {
    "libascend_hal.so": ("memory of the driver", "add the driver's lib64 to LD_LIBRARY_PATH"),
    "libascendcl.so": ("start and end of ACL, its out-of-memory errors", "source set_env.sh of CANN"),
    "libruntime.so": ("kernel launches", "source set_env.sh of CANN"),
    "libprofapi.so": ("names of kernels", "source set_env.sh of CANN"),
    "libms_tools_ext.so": ("pools of torch_npu and MindSpore, marks and ranges", "install the CANN toolkit, not nnrt"),
    "libdcmi.so": ("memory used on each card", "mount the driver into the container; everything else is recorded"),
    "libatb.so": ("operators and tensors of ATB", "source set_env.sh of nnal, if the program uses ATB"),
}
_OPTIONAL = ("libdcmi.so", "libatb.so")

_PROBE = """
import ctypes, json, os, sys
home, names = sys.argv[1], sys.argv[2:]
found = {}
for name in names:
    for path in [name, *([os.path.join(home, "lib64", name)] if home else [])]:
        try:
            ctypes.CDLL(path, mode=os.RTLD_LAZY | os.RTLD_GLOBAL)
            found[name] = [path, ""]
            break
        except OSError as error:
            found[name] = ["", str(error)]
cards, error = [], ""
from msmemscope.collect.agent.dcmi import Dcmi, DcmiError, candidates
if found.get("libdcmi.so", [""])[0]:
    try:
        for c in Dcmi(names=candidates({"ASCEND_HOME_PATH": home})).sample():
            cards.append([c.device, c.used, c.total, None if c.processes is None else len(c.processes)])
    except DcmiError as failure:
        error = str(failure)
print("\\n" + json.dumps({"libraries": found, "cards": cards, "dcmi": error}))
"""


def lines(environment: Mapping[str, str] = os.environ, *, framework: bool = False) -> Iterator[Line]:
    """framework: a framework for NPUs is installed, so that a missing CANN is worth a warning."""
    home = environment.get("ASCEND_HOME_PATH", "")
    if not home:
        text = "ASCEND_HOME_PATH is not set: NPUs are not recorded"
        yield Line("warn", text, "source set_env.sh of CANN first") if framework else Line("ok", f"no CANN: {text}")
        return
    if not Path(home).is_dir():
        yield Line("missing", f"ASCEND_HOME_PATH is {home}, which is no directory", "source set_env.sh of CANN again")
        return
    yield from _version_lines(Path(home))
    try:
        probed = probe(home)
    except MemscopeError as error:
        yield Line("missing", "the libraries of CANN could not be loaded", str(error))
        return
    yield from _library_lines(probed["libraries"])
    yield from _card_lines(probed)
    yield from _pool_lines(Path(home))
    yield from _visible_lines(environment.get("ASCEND_RT_VISIBLE_DEVICES"))


def cann_version(home: Path) -> str:
    """The version that an install.info below `home` names; "" when none does."""
    for pattern in ("*_install.info", "*/*_install.info", "*/*/*_install.info"):
        for path in sorted(home.glob(pattern)):
            try:
                texts = path.read_text(encoding="utf-8", errors="replace").splitlines()
            except OSError:
                continue
            for text in texts:
                name, _, value = text.partition("=")
                if name.strip().lower() == "version" and value.strip():
                    return value.strip()
    return ""


def probe(home: str) -> dict[str, Any]:
    """Loads each library in a process of its own; MemscopeError when that did not come to its end."""
    try:
        done = subprocess.run(
            isolated_command("-c", _PROBE, home, *LIBRARIES),
            capture_output=True,
            text=True,
            timeout=PROBE_SECONDS,
            check=False,
            env=environment_of_service(),
        )
        found: dict[str, Any] = json.loads(done.stdout.rstrip().rsplit("\n", 1)[-1])
    except (OSError, subprocess.TimeoutExpired) as error:
        raise MemscopeError(f"the probe did not answer: {error}") from None
    except ValueError:
        last = done.stderr.strip().rsplit("\n", 1)[-1] or f"exit status {done.returncode}"
        raise MemscopeError(f"the probe failed: {last}") from None
    return found


def _version_lines(home: Path) -> Iterator[Line]:
    version = cann_version(home)
    if version:
        yield Line("ok", f"CANN {version} ({home})")
    else:
        advice = "torch_npu looks for it too; without it sources rely on the symbols alone"
        yield Line("warn", f"CANN of unknown version ({home}): no *_install.info names one", advice)


def _library_lines(found: Mapping[str, Any]) -> Iterator[Line]:
    for name, (what, advice) in LIBRARIES.items():
        path, reason = found.get(name, ["", "not looked for"])
        if path:
            yield Line("ok", f"{name} ({path}): {what}")
        else:
            yield Line("warn" if name in _OPTIONAL else "missing", f"{name}: no {what}: {reason}", advice)


def _card_lines(probed: Mapping[str, Any]) -> Iterator[Line]:
    if probed["dcmi"]:
        yield Line("warn", f"dcmi: {probed['dcmi']}: use of the cards is not sampled", "npu-smi info should work")
    for device, used, total, processes in probed["cards"]:
        figures = "its use is not told" if used is None else f"{used >> 20:,} of {total >> 20:,} MiB used"
        yield Line("ok", f"npu:{device}: {figures}, " + _processes(processes))


def _processes(count: int | None) -> str:
    return "processes not told" if count is None else counted(count, "process", "processes")


def _pool_lines(home: Path) -> Iterator[Line]:
    """What torch_npu and MindSpore look at before they report their pools."""
    if not (home / "lib64" / "libms_tools_ext.so").is_file():
        text = f"{home}/lib64/libms_tools_ext.so is not a file: torch_npu does not report its pools"
        yield Line("missing", text, "install the CANN toolkit")
    real = Path(hook_library()).resolve().name
    if real == HOOK_LIBRARY:
        yield Line("ok", f"the preload library is named {HOOK_LIBRARY}, as torch_npu and MindSpore want it")
    else:
        text = f"the preload library is a link to {real}: torch_npu and MindSpore do not report their pools"
        yield Line("missing", text, f"install a real file named {HOOK_LIBRARY}")


def _visible_lines(visible: str | None) -> Iterator[Line]:
    if visible is None:
        return
    if all(part.strip().isdigit() for part in visible.split(",")):
        yield Line("ok", f"ASCEND_RT_VISIBLE_DEVICES is {visible}: records name the driver's numbers")
    else:
        text = f"ASCEND_RT_VISIBLE_DEVICES is {visible!r}, which is no list of device numbers"
        yield Line("warn", text, "correct it: devices keep the numbers that the process gives them")
