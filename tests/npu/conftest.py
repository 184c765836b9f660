"""Programs with the real torch_npu on the simulated CANN: who may run them, and the fixtures that do.

They run under the Python of the environment that `make setup-npu` makes, as processes of their own. Anywhere else
they are skipped, with the reason.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from compilers import needs_observer
from patience import LIMIT_S
from simulated import OnNpu, npu_environment, why_not

from msmemscope.collect import torch_ext

HERE = Path(__file__).resolve().parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    reason = why_not()
    if reason is None:
        return
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def on_npu(tmp_path_factory: pytest.TempPathFactory) -> OnNpu:
    """Runs programs on the simulated NPUs, each in a directory of its own unless `cwd` names one: torch_npu may
    write files where a program runs, such as device_0_memUsageInfo_*.csv."""

    def run(
        *command: str | Path,
        under: Sequence[str | Path] = (sys.executable,),
        cwd: Path | None = None,
        **changes: str,
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*map(str, under), *map(str, command)],
            cwd=cwd or tmp_path_factory.mktemp("cwd"),
            env=npu_environment(**changes),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )

    return run


@pytest.fixture(scope="session")
def has_observer(on_npu: OnNpu) -> bool:
    """Is what sees torch's operators built, so that they are there from the first step on?"""
    if torch_ext.find_compiler() is None:
        return False
    built = on_npu("-m", "msmemscope", "build-torch-ext")
    assert built.returncode == 0, built.stderr
    return True


@pytest.fixture(scope="session")
def observer(has_observer: bool) -> None:
    """For a test of operators: skips it where there is no compiler."""
    needs_observer()
