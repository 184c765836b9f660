"""What ray.init() is given where a node of Ray on this machine was started outside the session. Ray itself is in
tests/frameworks; here a process of its node's name stands for it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from patience import LIMIT_S

from msmemscope.collect.rank import ray_clusters
from msmemscope.collect.rank.first_fault import UntilFirstFault
from msmemscope.collect.session import SESSION_VARIABLE, SETTINGS_VARIABLE

SESSION = {SESSION_VARIABLE: "/dev/shm/the-session", SETTINGS_VARIABLE: "level=all"}
StartNode = Callable[[dict[str, str]], subprocess.Popen[bytes]]


@pytest.fixture
def start_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StartNode]:
    """Starts what has the name of Ray's process on a node, with these variables. Real ones on this machine are not
    seen meanwhile."""
    nodes: list[subprocess.Popen[bytes]] = []
    all_nodes = ray_clusters._nodes
    monkeypatch.setattr(ray_clusters, "_nodes", lambda: [one for one in all_nodes() if one in {n.pid for n in nodes}])
    program = tmp_path / "raylet"
    shutil.copy(shutil.which("sleep") or "/bin/sleep", program)

    def start(variables: dict[str, str]) -> subprocess.Popen[bytes]:
        nodes.append(subprocess.Popen([program, "600"], env=variables))
        deadline = time.monotonic() + LIMIT_S
        while not Path(f"/proc/{nodes[-1].pid}/cmdline").read_bytes().startswith(bytes(program)):
            assert time.monotonic() < deadline
        return nodes[-1]

    yield start
    for one in nodes:
        one.kill()
        one.wait()


def init_of(monkeypatch: pytest.MonkeyPatch, hosts: tuple[str, ...] = ()) -> tuple[Callable[..., Any], dict[str, Any]]:
    """A watched ray.init() within the session, and what the original was given last."""
    given: dict[str, Any] = {}
    ray: Any = ModuleType("ray")

    def init(address: object = None, **named: object) -> str:
        given.clear()
        given.update(named, address=address)
        return "context"

    ray.init = init
    ray.nodes = lambda: [{"NodeManagerHostname": host, "Alive": True} for host in hosts]
    for name, value in SESSION.items():
        monkeypatch.setenv(name, value)
    ray_clusters.watch(ray)
    return ray.init, given


def test_workers_of_a_node_from_outside_are_handed_the_session(
    start_node: StartNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    start_node({})
    init, given = init_of(monkeypatch)

    assert init("auto", num_cpus=1) == "context"

    assert given == {"address": "auto", "num_cpus": 1, "runtime_env": {"env_vars": SESSION}}


def test_what_the_program_says_of_its_environment_stays_and_counts_more(
    start_node: StartNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    start_node({})
    init, given = init_of(monkeypatch)
    hers = {"working_dir": ".", "env_vars": {"MODE": "fast", SETTINGS_VARIABLE: "hers"}}

    init(runtime_env=hers)

    assert given["runtime_env"] == {"working_dir": ".", "env_vars": {**SESSION, **hers["env_vars"]}}  # type: ignore[dict-item]
    assert hers == {"working_dir": ".", "env_vars": {"MODE": "fast", SETTINGS_VARIABLE: "hers"}}


@pytest.mark.parametrize("session", [SESSION, {}], ids=["of the session", "without a session"])
def test_a_cluster_of_the_session_is_left_alone(
    start_node: StartNode, monkeypatch: pytest.MonkeyPatch, session: dict[str, str]
) -> None:
    start_node(session)
    init, given = init_of(monkeypatch)
    if not session:
        monkeypatch.delenv(SESSION_VARIABLE)

    init("auto")

    assert given == {"address": "auto"}


def test_other_machines_of_the_cluster_are_named(
    start_node: StartNode, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    start_node({})
    init, _ = init_of(monkeypatch, hosts=("far", os.uname().nodename))

    init("auto")

    assert "workers of this Ray cluster on 1 other machine (far) are not recorded" in capsys.readouterr().err


def test_what_cannot_be_found_out_does_not_reach_the_program(
    start_node: StartNode, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    start_node({})
    init, given = init_of(monkeypatch)
    monkeypatch.setattr(ray_clusters, "_hands_on", UntilFirstFault("workers are not recorded"))

    def fails() -> list[int]:
        raise PermissionError("/proc")

    monkeypatch.setattr(ray_clusters, "_nodes", fails)
    for _ in range(2):
        assert init("auto") == "context"
    assert given == {"address": "auto"}
    assert capsys.readouterr().err.count("workers are not recorded") == 1


def test_a_session_whose_path_is_no_text_is_found(start_node: StartNode, monkeypatch: pytest.MonkeyPatch) -> None:
    path = os.fsdecode(b"/dev/shm/\xff")
    start_node({SESSION_VARIABLE: path})
    init, given = init_of(monkeypatch)
    monkeypatch.setenv(SESSION_VARIABLE, path)

    init("auto")

    assert given == {"address": "auto"}
