"""Attaches this process to a session: hooks, Python stacks, steps, identity. Once per process.

In: a Session. Out: events in this process's ring. Called by bootstrap.py in a launched program and by
msmemscope.start() in any other. Starts no thread; imports nothing but the standard library and _native.
"""

from __future__ import annotations

import atexit
import functools
import os
import sys

from msmemscope import _native
from msmemscope.collect.rank.address_space import AddressSpace
from msmemscope.collect.rank.first_fault import UntilFirstFault
from msmemscope.collect.rank.lookup import Lookup
from msmemscope.collect.rank.snapshot_requests import Requests
from msmemscope.collect.rank.steps import OptimizerSteps, keep_from_compiler
from msmemscope.collect.session import Session
from msmemscope.options.declared import settings_text
from msmemscope.telling import tell

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from msmemscope.options.declared import Config

_attached: Session | None = None
_identified = False
_hooked = False
_asks_groups = False
_looks_at_blocks = False
_lookup: Lookup | None = None
_address_space: AddressSpace | None = None
_requests: Requests | None = None

_optimizers = OptimizerSteps(_native.boundary)
_steps = UntilFirstFault("steps of optimizers are not counted")
_groups = UntilFirstFault("the rank in the process group is not known")


def attach(session: Session) -> None:
    """Makes this process record into `session`; recording itself begins with _native.start(). May be called again,
    with the same session: torch may have been imported since."""
    global _attached
    if _attached is None:
        _attached = session
        _set_up(session)
    _watch_torch()
    watch_operators(session.config)
    _watch_for_oom()
    watch_owners(session.config)
    _watch_for_marks()
    _watch_for_coordinates()


def _set_up(session: Session) -> None:
    global _requests
    config = session.config
    _requests = Requests(session.directory, _take_for_others)
    atexit.register(_requests.look, at_end=True)
    _native.set_session(session.directory)
    _native.configure(settings_text(config))
    if config.python_stack:
        if _walk_is_right():
            _native.use_python_frames(True)
            # After this the interpreter takes its frames apart; stacks are off from then on, events are not.
            atexit.register(_native.use_python_frames, False)
        else:
            version = sys.version.split()[0]
            tell(
                f"Warning: no Python call stacks: frames of Python {version} are laid out differently from what this "
                "build expects; reinstall msmemscope for this interpreter"
            )
    if config.holders != "none" and config.looks_for_leaks:
        _watch_for_holders(session)
    _native.install_hooks()
    _native.remember()
    os.register_at_fork(after_in_child=_after_fork_in_child)


def watch_operators(config: Config) -> None:
    """Where `config` asks for torch's operators, lets somebody see them, once torch is imported."""
    if (config.observes_operators or _looks_at_blocks) and _attached is not None:
        from msmemscope.collect.rank import operators

        operators.watch_operators(_attached.directory, at_once=_looks_at_blocks or config.watch is not None)


def look_at_blocks() -> None:
    """The program watches a block: operators are seen from now on, or from when there is a session."""
    global _looks_at_blocks
    _looks_at_blocks = True
    if _attached is not None:
        watch_operators(_attached.config)


def _watch_for_oom() -> None:
    """Of cards: torch's CPU allocator has nothing to tell."""
    if "torch" in sys.modules:
        from msmemscope.snapshots import watch_for_oom

        watch_for_oom()


def _watch_for_marks() -> None:
    """Of engines, which sleep and wake up."""
    if "torch" in sys.modules:
        from msmemscope.framework_hooks import watch_marks

        watch_marks()


def _watch_for_coordinates() -> None:
    """Of ranks that stand in groups, what they are for, and what verl's profilers are asked for."""
    if "torch" in sys.modules:
        from msmemscope.collect.rank import coordinates, roles, verl_profiler

        coordinates.watch()
        roles.watch()
        verl_profiler.watch()


def watch_owners(config: Config) -> None:
    """Where `config` asks for owners, lets torch's modules and optimizers say what their tensors are."""
    if config.records_owners and _attached is not None and "torch" in sys.modules:
        from msmemscope.collect.rank import identities
        from msmemscope.framework_hooks import watch_frameworks

        identities.watch_identities()
        watch_frameworks()


def recording_begins() -> None:
    """start() of the program's: what was said before, and what is there already, is told to the session."""
    again = (
        *(("labels", "tell_again"), ("identities", "label_known_modules")),
        *(("coordinates", "tell_again"), ("roles", "tell_again")),
    )
    for name, tell_it in again:
        module = sys.modules.get(f"msmemscope.collect.rank.{name}")
        if module is not None:
            getattr(module, tell_it)()


def look_for_operators() -> None:
    """At a boundary of steps, which may be the one from which operators are seen."""
    operators = sys.modules.get("msmemscope.collect.rank.operators")
    if operators is not None:
        operators.look_again()


def _watch_for_holders(session: Session) -> None:
    global _lookup, _address_space
    _address_space = AddressSpace()
    lookup = Lookup(session.directory)
    if session.config.holders == "step":
        _lookup = lookup
    # Whatever the program registers later runs before, as its threads end before.
    atexit.register(lookup.at_exit)


def step_ended() -> None:
    """A step of this process has just ended."""
    look_for_operators()
    for name in ("coordinates", "roles"):
        module = sys.modules.get(f"msmemscope.collect.rank.{name}")
        if module is not None:
            module.tell_again()
    if _requests is not None:
        _requests.look()
    if _address_space is not None:
        _address_space.after_step()
    if _lookup is not None:
        _lookup.after_step()


def requests() -> Requests | None:
    """Of snapshots, in the session that this process records into."""
    return _requests


def _take_for_others(name: str, device: int) -> bool:
    from msmemscope.snapshots import take_for_others

    return take_for_others(name, device)


def attached() -> Session | None:
    """The session that this process records into."""
    return _attached


def _watch_torch() -> None:
    """Registers the optimizer hook, once, when torch is imported, and waits for a process group."""
    global _hooked, _asks_groups
    groups = sys.modules.get("torch.distributed.distributed_c10d")
    update = getattr(groups, "_update_default_pg", None)
    if update is not None and not _asks_groups:
        _asks_groups = True
        groups._update_default_pg = _with_identity(update)  # type: ignore[union-attr]
    optimizer = sys.modules.get("torch.optim.optimizer")
    register = getattr(optimizer, "register_optimizer_step_post_hook", None)
    if register is not None and not _hooked:  # torch >= 2.0
        _hooked = True
        keep_from_compiler(_after_optimizer_step)
        register(_after_optimizer_step)


def _after_optimizer_step(optimizer: object, args: object, kwargs: object) -> None:
    def look() -> None:
        identify()
        identities = sys.modules.get("msmemscope.collect.rank.identities")
        if identities is not None:
            identities.before_boundary(optimizer)
        _optimizers.after_step(optimizer, args, kwargs)
        step_ended()

    _steps.run(look)


def _with_identity(update: Callable[..., object]) -> Callable[..., object]:
    """torch's function by which a default process group comes and goes, and we hear of it: a worker of an inference
    engine has no optimizer and makes no step, at which it could be asked."""

    @functools.wraps(update)
    def update_default_group(*args: object, **kwargs: object) -> object:
        result = update(*args, **kwargs)
        identify()
        return result

    return update_default_group


def identify() -> None:
    """Tells the rank that torch.distributed knows, for launchers that set no RANK (mp.spawn, an engine's own). There
    may be a process group, or a recording, only later: called when a group comes, at start() and at every step, until
    there are both. Raises nothing: a rank that cannot be had stays unknown.
    """
    distributed = None if _identified else sys.modules.get("torch.distributed")
    if distributed is not None:
        _groups.run(lambda: _tell_rank(distributed))


def _tell_rank(distributed: ModuleType) -> None:
    global _identified
    if distributed.is_available() and distributed.is_initialized() and _native.stats()["recording"]:
        _identified = True
        _native.identify(rank=distributed.get_rank(), world_size=distributed.get_world_size())


def _after_fork_in_child() -> None:
    global _identified
    _identified = False  # it may come to a process group of its own


def _walk_is_right() -> bool:
    """Compares a walk of this very stack with what the interpreter says."""

    def walk(depth: int) -> tuple[list[tuple[str, str, int]], list[tuple[str, str, int]]]:
        if depth > 0:
            return walk(depth - 1)
        expected = []
        frame: object = sys._getframe()
        # Both on one line: the line of the innermost frame is part of what is compared.
        walked = _native.walked_frames(64); expected = list(_public_frames(frame, 64))  # noqa: E702  # fmt: skip
        return walked, expected

    walked, expected = walk(3)
    return walked == expected and len(walked) >= 4


def _public_frames(frame: object, most: int) -> list[tuple[str, str, int]]:
    rows: list[tuple[str, str, int]] = []
    current = frame
    while current is not None and len(rows) < most:
        code = current.f_code  # type: ignore[attr-defined]
        name = getattr(code, "co_qualname", code.co_name)
        rows.append((code.co_filename, name, current.f_lineno))  # type: ignore[attr-defined]
        current = current.f_back  # type: ignore[attr-defined]
    return rows
