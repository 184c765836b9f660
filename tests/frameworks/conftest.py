"""Real frameworks under the tool, in the environment that `make setup-frameworks` makes. Anywhere else the tests are
skipped, with the reason.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import pytest
from framework_runs import LIMIT_S, PROGRAMS, QUIET
from running import Outcome, Watch, run_tool

HERE = Path(__file__).resolve().parent


ASKED_FOR = {
    "test_vllm.py": ("vllm",),
    "test_verl.py": ("verl", "ray"),
    "test_ray.py": ("ray",),
    "test_training.py": ("deepspeed", "accelerate", "transformers", "lightning"),
    "test_mindspore.py": ("mindspore",),
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            missing = [name for name in ASKED_FOR[item.path.name] if find_spec(name) is None]
            if missing:
                item.add_marker(pytest.mark.skip(reason=f"no {', '.join(missing)} here: make help names where"))


@pytest.fixture
def watch(tmp_path: Path) -> Watch:
    """Runs a command line under the tool, writing below this test's own directory; `options` are the tool's, other
    keywords variables."""

    def run(*argv: str | Path, options: Sequence[str] = (), **env: str) -> Outcome:
        return run_tool(tmp_path / "out", argv, options, LIMIT_S, **QUIET, **env)

    return run


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A language model of two layers with random weights, and its tokenizer, as files."""
    path = tmp_path_factory.mktemp("model") / "tiny"
    subprocess.run([sys.executable, PROGRAMS / "make_model.py", path], check=True, timeout=180)
    return path
