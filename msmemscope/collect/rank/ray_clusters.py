"""Workers of a Ray cluster that was started outside the session: they inherit nothing from the driver's environment.

In: `ray.init()` in a process of a session. Out: where a node of Ray on this machine was started by somebody else, the
variables of the session are added to the job's runtime environment, by which Ray hands them to this job's workers and
to no other's; workers on other machines cannot reach the session, which is said. A cluster that was started within the
session is left alone, since its workers inherit. Nothing is preloaded: Ray starts a shell first, and other machines may
have the library elsewhere, so that workers come to the session as processes of library mode do, by msmemscope.pth.
"""

from __future__ import annotations

import functools
import os
import sys

from msmemscope.collect.rank.first_fault import UntilFirstFault
from msmemscope.collect.session import SESSION_VARIABLE, SETTINGS_VARIABLE
from msmemscope.telling import warn_once

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_NODE_VARIABLE = "RAY_RAYLET_PID"  # of its workers: that process
_HANDED = (SESSION_VARIABLE, SETTINGS_VARIABLE)
_NODE = "raylet"  # Ray's process on each of its nodes, the parent of its workers
_NAMED = 3  # hosts in a line

_hands_on = UntilFirstFault("workers of Ray clusters from outside msmemscope are not recorded")


def watch(ray: Any) -> None:
    """From now on; ray: the module, which has just been imported."""
    original = ray.init

    @functools.wraps(original)
    def init(*arguments: Any, **named: Any) -> Any:
        changed = [named]

        def hand_on() -> None:
            if _is_outside():
                changed.append(_with_session(named))

        _hands_on.run(hand_on)
        context = original(*arguments, **changed[-1])
        if changed[-1] is not named:
            _hands_on.run(lambda: _say_who_is_out_of_reach(ray))
        return context

    # Both, so that it is found under its own name: what refers to it is pickled by that.
    home = sys.modules.get(original.__module__)
    if getattr(home, "init", None) is original:
        home.init = init  # type: ignore[union-attr]
    ray.init = init


def node_of_worker() -> int | None:
    """Of a worker of Ray: the process that started all workers of its node; else None. Asks Ray nothing."""
    node = os.getppid()
    return node if os.environ.get(_NODE_VARIABLE) == str(node) else None


def node_and_job() -> tuple[int, str] | None:
    """Of a worker of Ray: node_of_worker(), and the job it works for; else None."""
    node = node_of_worker()
    if node is None:
        return None
    ray: Any = sys.modules.get("ray")
    return node, str(ray.get_runtime_context().get_job_id()) if ray is not None and ray.is_initialized() else ""


def _is_outside() -> bool:
    """Is there a session, and on this machine a node of Ray that was not started within it? Which of several is meant
    is Ray's to find out: one hand too many does no harm."""
    session = os.environ.get(SESSION_VARIABLE)
    return bool(session) and any(not _inherits(node, os.fsencode(f"{SESSION_VARIABLE}={session}")) for node in _nodes())


def _nodes() -> list[int]:
    """Processes of Ray's nodes on this machine."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/comm", encoding="utf-8", errors="replace") as file:
                    if file.read().strip() == _NODE:
                        found.append(int(name))
            except OSError:
                continue  # it has ended
    return found


def _inherits(pid: int, entry: bytes) -> bool:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return entry in file.read().split(b"\0")
    except OSError:
        return False  # another user's


def _with_session(named: dict[str, Any]) -> dict[str, Any]:
    """The arguments of ray.init() with a runtime environment that names the session, too. What the program says there
    itself stays as it is, and is not changed in place."""
    job = named.get("job_config")
    environment: Any = named.get("runtime_env") or getattr(job, "runtime_env", None) or {}
    variables = {name: os.environ[name] for name in _HANDED if name in os.environ}
    added = {**environment, "env_vars": {**variables, **(environment.get("env_vars") or {})}}
    return {**named, "runtime_env": added}


def _say_who_is_out_of_reach(ray: Any) -> None:
    """Machines of the cluster other than this one: what runs there makes no rings that the session's agent sees."""
    hosts = {str(node.get("NodeManagerHostname")) for node in ray.nodes() if node.get("Alive")} - {os.uname().nodename}
    if hosts:
        names = ", ".join(sorted(hosts)[:_NAMED]) + (" and others" if len(hosts) > _NAMED else "")
        machines = f"{len(hosts)} other machine{'s' if len(hosts) > 1 else ''} ({names})"
        warn_once(
            f"workers of this Ray cluster on {machines} are not recorded: put msmemscope in front of "
            "`ray start --block` there, or call msmemscope.start() in them"
        )
