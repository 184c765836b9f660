"""An environment in which a service could not run is found before the program starts, and told in one line."""

from __future__ import annotations

import os
import subprocess
import sysconfig
import venv
from pathlib import Path

import pytest
from patience import LIMIT_S

NUMPY_2 = "raise ImportError('numpy.core.multiarray failed to import')\n"


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    """The python of an environment like this one, in which pyarrow was built for another numpy."""
    venv.create(tmp_path / "venv", symlinks=True)
    (site,) = (tmp_path / "venv" / "lib").glob("python*/site-packages")
    (site / "ours.pth").write_text(f"import site; site.addsitedir({sysconfig.get_path('platlib')!r})\n")
    (site / "pyarrow").mkdir()
    (site / "pyarrow" / "__init__.py").write_text(f"print('a warning of many lines\\\\n' * 20)\n{NUMPY_2}")
    return tmp_path / "venv" / "bin" / "python"


def run(*words: str | Path, cache: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "XDG_CACHE_HOME": str(cache)}
    return subprocess.run(
        list(map(str, words)), capture_output=True, text=True, timeout=LIMIT_S, check=False, env=environment, cwd=cache
    )


def test_a_run_is_refused_in_one_line_that_says_what_to_install(broken: Path, tmp_path: Path) -> None:
    done = run(broken, "-m", "msmemscope", "echo", "the program", cache=tmp_path)

    assert (done.returncode, done.stdout) == (4, "")
    (line,) = done.stderr.splitlines()
    assert "pyarrow cannot be imported (numpy.core.multiarray failed to import)" in line
    assert "pip install 'msmemscope[numpy1]'" in line
    assert not (tmp_path / "msmemscope").exists()  # what failed is tried again


def test_a_service_says_one_line_and_is_not_started_again(broken: Path, tmp_path: Path) -> None:
    code = "from msmemscope.isolated import isolated_command; print(*isolated_command('msmemscope.aggregate.server'))"
    command = run(broken, "-c", code, cache=tmp_path).stdout.split()

    done = run(*command, cache=tmp_path)

    assert done.returncode == 4
    assert len(done.stderr.splitlines()) == 1
    assert "aggregator: cannot be imported (numpy.core.multiarray failed to import)" in done.stderr


def test_doctor_imports_what_it_vouches_for(broken: Path, tmp_path: Path) -> None:
    done = run(broken, "-m", "msmemscope", "doctor", cache=tmp_path)

    assert done.returncode == 4
    (line,) = [line for line in done.stdout.splitlines() if "pyarrow" in line]
    assert line.split()[0] == "missing"


def test_what_was_tried_is_tried_again_only_when_it_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from msmemscope import dependencies

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    dependencies.require_imports()
    (noted,) = (tmp_path / "msmemscope" / "imports").iterdir()
    monkeypatch.setattr(dependencies, "failed_imports", lambda: {"zmq": "tried again"})

    dependencies.require_imports()

    noted.unlink()
    with pytest.raises(dependencies.MemscopeError, match="tried again"):
        dependencies.require_imports()
