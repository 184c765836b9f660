"""Upstream's msmemscope.take_snapshot and TakeSnapshot: torch's allocator at a moment, per device: its counters, and
where it can tell them its segments and blocks. Taken by the program, and by itself when a card's memory has run out.
"""

from __future__ import annotations

from msmemscope.collect.rank.around import Around
from msmemscope.telling import warn_once

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any

DEFAULT_NAME = "Memory Snapshot"
OOM_NAME = "out of memory"  # of those that are taken by themselves
OOM_EVERY_S = 2.0  # a program may fail, catch the error and try again without end
MOST_AT_OOM = 20


def take_snapshot(device_mask: int | list[int] | tuple[int, ...] | None = None, name: str = DEFAULT_NAME) -> None:
    """Records a SNAPSHOT of each device of `device_mask` that this process uses; None: of all of them.

    device_mask: numbers of devices as the process counts them. name: tells snapshots apart. Recorded are the bytes that
    torch's allocator has given out and reserved, the peaks of both, and the device's free and whole memory, and its
    segments and blocks with their states; also while msmemscope does not record otherwise, and in a session of its own
    where there is none. A device that this process does not use is asked of the processes of this node that do: they
    take the snapshot at their next step, and a warning names the devices for which none came to one within 30 s.
    Without torch in the process, and without another that could answer, there is a warning alone.

    Raises TypeError for another mask or a name that is no text, ValueError for a negative number.
    """
    wanted = _numbers(device_mask)
    if not isinstance(name, str):
        raise TypeError(f"take_snapshot() takes a text as name; got {type(name).__name__}")
    _take(wanted, name)


def take_of_own_devices(name: str) -> None:
    """One of each device that this process uses, for somebody who cannot know whether it uses any."""
    for kind, memory, device in _devices_in_use():
        _record(kind, memory, device, name)


class TakeSnapshot(Around):
    """Snapshots named "<name> Start" and "<name> End" around a ``with`` block, or around each run of a decorated
    function. Arguments and errors as take_snapshot()."""

    def __init__(self, device_mask: int | list[int] | tuple[int, ...] | None = None, name: str = DEFAULT_NAME):
        super().__init__()
        self._wanted = _numbers(device_mask)
        if not isinstance(name, str):
            raise TypeError(f"TakeSnapshot() takes a text as name; got {type(name).__name__}")
        self._name = name

    def begin(self) -> int:
        _take(self._wanted, f"{self._name} Start")
        return 0

    def end(self, _: int) -> None:
        _take(self._wanted, f"{self._name} End")


def _numbers(mask: object) -> tuple[int, ...] | None:
    if mask is None:
        return None
    numbers = tuple(mask) if isinstance(mask, (list, tuple)) else (mask,)
    for number in numbers:
        if not isinstance(number, int) or isinstance(number, bool):
            raise TypeError(f"a device mask is a number, or a list or tuple of numbers; got {type(number).__name__}")
        if number < 0:
            raise ValueError(f"a device mask has no negative numbers; got {number}")
    return numbers


def _take(wanted: Sequence[int] | None, name: str) -> None:
    in_use = list(_devices_in_use())
    if in_use:
        from msmemscope import joins_or_makes_session

        joins_or_makes_session()
    for kind, memory, device in in_use:
        if wanted is None or device in wanted:
            _record(kind, memory, device, name)
    missing = sorted(set(wanted or ()) - {device for _, _, device in in_use})
    if missing and not _ask_others(missing, name):
        warn_once(f"no snapshot of device {', '.join(map(str, missing))}: torch does not use it in this process")
    elif not missing and not in_use:
        warn_once("no snapshot: torch uses no NPU or GPU in this process, and has no counters of its CPU memory")


def _ask_others(devices: Sequence[int], name: str) -> bool:
    """False: there is no session, or it cannot be written to."""
    import sys

    from msmemscope.collect.rank.attach import requests
    from msmemscope.collect.rank.snapshot_requests import driver_number

    others = requests()
    if others is None:
        return False
    kind = "npu" if hasattr(sys.modules.get("torch"), "npu") else "cuda"
    try:
        others.ask([driver_number(device, _VISIBLE[kind]) for device in devices], name)
    except OSError:
        return False
    return True


def take_for_others(name: str, device: int) -> bool:
    """Takes a snapshot of the driver's device of this number. False: this process does not use it. Raises nothing."""
    from msmemscope.collect.rank.snapshot_requests import driver_number

    try:
        for kind, memory, number in _devices_in_use():
            if driver_number(number, _VISIBLE[kind]) == device:
                _record(kind, memory, number, name)
                return True
    except Exception as error:  # noqa: BLE001 - whatever it is, the program's step goes on
        warn_once(f"no snapshot of device {device} for another process: {error}")
    return False


_VISIBLE = {"npu": "ASCEND_RT_VISIBLE_DEVICES", "cuda": "CUDA_VISIBLE_DEVICES"}


def _devices_in_use() -> Iterator[tuple[str, Any, int]]:
    """("npu" or "cuda", its torch module, number) of each device with a context of this process. Asks no other."""
    import sys

    torch = sys.modules.get("torch")
    for kind in ("npu", "cuda"):
        module = getattr(torch, kind, None)
        if module is None or not getattr(module, "is_initialized", bool)():
            continue
        current = module.current_device()
        for device in range(module.device_count()):
            if device == current or module.memory_reserved(device) > 0:
                yield kind, module, device


def _record(kind: str, module: Any, device: int, name: str) -> None:
    from msmemscope import _native
    from msmemscope.vocabulary import DeviceType, Pool

    try:
        free, total = module.mem_get_info(device)
    except RuntimeError as error:  # the current device, of which this process has used nothing yet
        warn_once(f"no snapshot of {kind} {device}, which this process does not use yet: {str(error).splitlines()[0]}")
        return
    _native.snapshot(
        name,
        device_type=int(DeviceType.NPU if kind == "npu" else DeviceType.CUDA),
        device=device,
        pool=int(Pool.PTA if kind == "npu" else Pool.CUDA),
        allocated=module.memory_allocated(device),
        reserved=module.memory_reserved(device),
        max_allocated=module.max_memory_allocated(device),
        max_reserved=module.max_memory_reserved(device),
        free=free,
        total=total,
    )
    _record_pieces(kind, module, device, name)


def _record_pieces(kind: str, module: Any, device: int, name: str) -> None:
    from msmemscope import _native
    from msmemscope.collect.rank.pool_pieces import pieces_of
    from msmemscope.vocabulary import DeviceType, Pool

    tell_all = getattr(module, "memory_snapshot", None)
    if tell_all is None:
        return
    pieces, left_out = pieces_of(tell_all(), device)
    _native.snapshot_pieces(
        name,
        device_type=int(DeviceType.NPU if kind == "npu" else DeviceType.CUDA),
        device=device,
        pool=int(Pool.PTA if kind == "npu" else Pool.CUDA),
        pieces=pieces,
    )
    if left_out:
        _native.meta("lost.snapshots", f"{left_out:,} segments and blocks of snapshot {name[:100]!r}: too many")


# --- when memory has run out ------------------------------------------------------------------------------------------

_watched: set[str] = set()
_next_at_oom = 0.0
_taken_at_oom = 0


def watch_for_oom() -> None:
    """Lets torch's allocators tell when they fail, once torch is imported; further calls do nothing for those that are
    watched. They tell without their locks, ahead of the error that the program gets. Raises nothing."""
    import sys

    for kind, package in (("npu", "torch_npu"), ("cuda", "torch")):
        torch, owner = sys.modules.get("torch"), sys.modules.get(package)
        module = getattr(torch, kind, None)
        attach = getattr(getattr(owner, "_C", None), f"_{kind}_attach_out_of_memory_observer", None)
        later = getattr(module, "_lazy_call", None)
        if kind in _watched or attach is None or later is None:
            continue
        _watched.add(kind)

        def begin(attach: Any = attach, kind: str = kind, module: Any = module) -> None:
            import msmemscope.collect.rank.pool_pieces  # noqa: F401 - now: no file is read when memory has run out

            attach(lambda device, *_: _after_failure(kind, module, device))

        try:
            later(begin)  # once the process uses the device: attaching would make a context
        except Exception as error:  # noqa: BLE001 - whatever it is, the program goes on
            warn_once(f"no snapshots are taken when memory runs out: {error}")


def _after_failure(kind: str, module: Any, device: int) -> None:
    global _next_at_oom, _taken_at_oom
    import time

    from msmemscope import _native

    now = time.monotonic()
    if now < _next_at_oom or _taken_at_oom == MOST_AT_OOM:
        return
    _next_at_oom = now + OOM_EVERY_S
    _taken_at_oom += 1
    try:
        if _native.stats()["recording"]:
            _record(kind, module, device, OOM_NAME)
    except Exception as error:  # noqa: BLE001 - whatever it is, the program gets its own error
        warn_once(f"no snapshot of {kind} {device}, whose memory ran out: {error}")
