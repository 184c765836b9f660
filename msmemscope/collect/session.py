"""The session: a directory in shared memory through which the processes of a node find each other.

In: a Config and who runs. Out: the directory, its session.json, and the environment a watched process gets. The
supervisor makes one per run; in library mode the first process of a node does. Agent and aggregator read it.
"""

from __future__ import annotations

import json
import os
import time

from msmemscope.collect.nodes import nodes_of
from msmemscope.collect.nothing import open_nothing
from msmemscope.collect.place import choose_place
from msmemscope.collect.presence import OWNER, hold
from msmemscope.errors import MemscopeError
from msmemscope.options.declared import Config, settings_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from subprocess import Popen

SESSION_VARIABLE = "MSMEMSCOPE_SESSION"
SETTINGS_VARIABLE = "MSMEMSCOPE_SETTINGS"  # read by native/hook/preload.cpp
FINISH = "finish"  # this file says: the program has ended, drain and stop
AGENT_ID = "agent.id"  # this file names the node's agent, once there is one
# Files of rings that were deleted with the session directory, a line each, in the directory that was made again. First
# "served" or "not served": whether there had been an agent in the old one.
DELETED_RINGS = "deleted-rings"
COUNTED_RINGS = "deleted-rings-counted"  # its name once an agent has read it
LEAKING = "leaking-"  # leaking-<ring>: addresses of blocks that leak there, by call stack; see rank/lookup.py
ALONE = "alone"  # an aggregator's argument: nobody else is left, read the rings and remove the session
HOOK_LIBRARY = "libascend_kernel_hook.so"


class Session:
    """A session directory and what its session.json says.

    `mode` is "launched" (a supervisor waits for the program and says when to finish) or "library" (agent and
    aggregator finish by themselves after the last rank). `owner` is the descriptor of the lock (presence.py) of who
    made the session, -1 for everybody else.
    """

    def __init__(self, directory: str, facts: dict[str, object], owner: int = -1) -> None:
        self.directory = directory
        self.facts = facts
        self.owner = owner

    @property
    def id(self) -> str:
        return str(self.facts["session"])

    @property
    def mode(self) -> str:
        return str(self.facts["mode"])

    @property
    def run_directory(self) -> str:
        return str(self.facts["run"])

    @property
    def config(self) -> Config:
        values = self.facts["config"]
        assert isinstance(values, dict)
        return Config.from_dict(values)

    def path(self, name: str) -> str:
        return os.path.join(self.directory, name)

    @classmethod
    def create(cls, config: Config, argv: list[str], *, mode: str, name: str | None = None) -> Session:
        """Makes the directory (mode 0700) and session.json. `name` fixes the directory's name.

        Raises FileExistsError when `name` is taken, MemscopeError when no place can be written.
        """
        try:
            place = choose_place(config.ring_mib << 20)
        except OSError as error:
            raise MemscopeError(str(error)) from None
        identity = os.urandom(8).hex()
        directory = os.path.join(place.path, name or f"msmemscope-{os.getuid()}-{identity}")
        os.mkdir(directory, 0o700)
        # Under another name until the lock is held: a file `owner` that nobody holds is a session that was left.
        owner = hold(os.path.join(directory, OWNER + "~"))
        os.rename(os.path.join(directory, OWNER + "~"), os.path.join(directory, OWNER))
        now = time.time_ns()
        run = f"run_{time.strftime('%Y%m%d%H%M%S', time.localtime(now // 10**9))}_{identity[:6]}"
        output = os.path.abspath(config.output_path)
        facts: dict[str, object] = {
            "session": identity,
            "mode": mode,
            "output": output,
            "missing": _missing(output),
            "run": os.path.join(output, run),
            "config": config.as_dict(),
            "program": argv,
            "host": os.uname().nodename,
            "nodes": nodes_of(argv, os.environ).as_dict(),  # of the job; "agents" are this run's, one
            "mounts": mount_namespace(),
            "standing": standing(output),
            "created_wall_ns": now,
            "endpoint": f"ipc://{directory}/shard.sock",
        }
        session = cls(directory, facts, owner)
        session.write()
        return session

    @classmethod
    def load(cls, directory: str) -> Session:
        """Reads session.json. Raises MemscopeError when there is none or it is another user's."""
        path = os.path.join(directory, "session.json")
        try:
            with open(path, encoding="utf-8") as file:
                if os.fstat(file.fileno()).st_uid != os.geteuid():
                    raise MemscopeError(f"{path} belongs to another user: start a session of your own")
                return cls(directory, json.load(file))
        except (OSError, ValueError) as error:
            raise MemscopeError(f"cannot read the session {path} ({error}): start the program again") from None

    def write(self) -> None:
        path = self.path("session.json")
        with open(path + "~", "w", encoding="utf-8", opener=_private) as file:
            json.dump(self.facts, file)
        os.replace(path + "~", path)

    def environment(self) -> dict[str, str]:
        """The variables of a watched process, beyond those it has. The hook library reads them before Python
        is up, so they say all that it needs."""
        return {
            SESSION_VARIABLE: self.directory,
            SETTINGS_VARIABLE: settings_text(self.config),
            "LD_PRELOAD": _preloaded(os.environ.get("LD_PRELOAD", "")),
        }


def _preloaded(before: str) -> str:
    """LD_PRELOAD with our library; that of another installation (`source msmemscope --load-api-env`) gives way."""
    ours = hook_library()
    entries = before.replace(" ", ":").split(":")
    copies = [entry for entry in entries if os.path.basename(entry) == HOOK_LIBRARY]
    if copies == [ours]:
        return before
    if not copies:
        return f"{ours}:{before}" if before else ours
    return ":".join([ours, *(entry for entry in entries if entry and entry not in copies)])


def hook_library() -> str:
    """The path of the one preload library: beside _native, which an editable installation keeps elsewhere than this."""
    import importlib.util  # here, because a rank that never asks need not load it

    spec = importlib.util.find_spec("msmemscope._native")
    beside = spec.origin if spec is not None and spec.origin is not None else os.path.dirname(__file__)
    return os.path.join(os.path.dirname(os.path.abspath(beside)), HOOK_LIBRARY)


def start_service(
    module: str,
    directory: str,
    *words: str,
    preexec_fn: Callable[[], None] | None = None,
    owner: int = -1,
    child: bool = True,
) -> Popen[bytes]:
    """Runs the main() of `module` for the session `directory`, as a process in a group of its own: unwatched, out of
    reach of the user's modules, and of our files with stderr alone: stdout belongs to the program. Its stdin is
    nothing, or the lock of the `owner`, who it becomes. child: else it is no child of this process, which may be a
    program that waits until it has none, and what is returned has ended."""
    from subprocess import Popen  # not at the top: a rank that only joins a session never needs it

    from msmemscope.isolated import NO_CHILD, environment_of_service, isolated_command

    nothing = open_nothing()
    try:
        process = Popen(
            isolated_command(*([] if child else [NO_CHILD]), module, directory, *words),
            stdin=nothing if owner < 0 else owner,
            stdout=2 if _is_open(2) else nothing,
            env=environment_of_service(),
            start_new_session=True,
            preexec_fn=preexec_fn,
        )
    finally:
        os.close(nothing)
    if not child:
        process.wait()
    return process


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


def mount_namespace() -> str:
    """Within one, a path means the same to everybody; containers may share /dev/shm without sharing that."""
    try:
        return os.readlink("/proc/self/ns/mnt")
    except OSError:
        return ""


def standing(path: str) -> dict[str, list[int]]:
    """Device and inode of `path` and of each directory that leads to it, as far as they are there. The number of a
    mount namespace that has ended is given to the next one, in which these paths may be other directories."""
    found = {}
    while True:
        try:
            facts = os.stat(path)
        except OSError:
            pass
        else:
            found[path] = [facts.st_dev, facts.st_ino]
        if path == os.path.dirname(path):
            return found
        path = os.path.dirname(path)


def _missing(path: str) -> list[str]:
    """`path` and those of its parents that are not there, innermost first: removed again when nothing was recorded."""
    missing = []
    while not os.path.lexists(path):
        missing.append(path)
        path = os.path.dirname(path)
    return missing


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
