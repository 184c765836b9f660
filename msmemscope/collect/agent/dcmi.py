"""What Ascend's management library says of each card: memory used, memory there is, and whose it is.

In: libdcmi.so, looked for by its bare name and then below $ASCEND_HOME_PATH. Out: `Card`s. The calls go to the driver
and may be slow or hang, and a library may hang while it is loaded, so nothing here is called on a thread that anybody
waits for (usage.py); all calls give the interpreter free.

Signatures and structs: hooks.md 2.5 of the reference, dcmi_interface_api.h of the driver package.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

LIBRARY = "libdcmi.so"
MAX_CARDS = 32
MAX_PROCESSES = 64  # on one card; the length of the driver's own array
_MIB = 1 << 20
_UNKNOWN_NUMBER = -1


class DcmiError(Exception):
    """One line: what of the library does not work."""


@dataclass(frozen=True)
class Card:
    """One card at one moment. Bytes; `device` is the driver's number, as in the records."""

    device: int
    used: int | None  # by everybody
    total: int | None
    processes: Mapping[int, int] | None = field(default=None)  # pid as the driver knows it -> bytes


class _HbmInfo(ctypes.Structure):
    _fields_ = (
        ("memory_size", ctypes.c_uint64),  # MiB
        ("freq", ctypes.c_uint32),
        ("memory_usage", ctypes.c_uint64),  # MiB
        ("temp", ctypes.c_int32),
        ("bandwidth_util_rate", ctypes.c_uint32),
    )


class _ProcessMemory(ctypes.Structure):
    _fields_ = (("pid", ctypes.c_int32), ("bytes", ctypes.c_ulong))


def candidates(environment: Mapping[str, str] = os.environ) -> list[str]:
    """The names to open, in order."""
    home = environment.get("ASCEND_HOME_PATH", "")
    return [LIBRARY, *([os.path.join(home, "lib64", LIBRARY)] if home else [])]


class Dcmi:
    """The loaded library. `tick` is called before each call into it. DcmiError when there is none, or it does not
    answer as it should."""

    def __init__(self, tick: Callable[[], None] = lambda: None, names: Sequence[str] | None = None) -> None:
        self._tick = tick
        tick()
        self.path, handle = _open(candidates() if names is None else names)
        self._library = ctypes.CDLL(self.path, handle=handle)
        self._init = self._function("dcmi_init")
        self._card_list = self._function("dcmi_get_card_list")
        self._device_count = self._function("dcmi_get_device_num_in_card")
        self._logic_id = self._function("dcmi_get_device_logic_id")
        self._hbm = self._function("dcmi_get_device_hbm_info")
        try:
            self._process_memory: Callable[..., int] | None = self._function("dcmi_get_npu_proc_mem_info")
        except DcmiError:  # drivers before 24.1
            self._process_memory = None
        _check("dcmi_init", self._call(self._init))
        self._places = self._find()

    def sample(self) -> list[Card]:
        """Every card as it is now. A figure that cannot be had is None; DcmiError when no card has any."""
        cards = [Card(device, *self._memory(*place), self._owners(*place)) for device, place in self._places.items()]
        if all(card.used is None and card.processes is None for card in cards):
            raise DcmiError("dcmi_get_device_hbm_info and dcmi_get_npu_proc_mem_info fail for every card")
        return cards

    def _find(self) -> dict[int, tuple[int, int]]:
        """The driver's device number -> (card, device in card)."""
        count, cards = ctypes.c_int(0), (ctypes.c_int * MAX_CARDS)()
        _check("dcmi_get_card_list", self._call(self._card_list, ctypes.byref(count), cards, MAX_CARDS))
        places: dict[int, tuple[int, int]] = {}
        for card in cards[: max(0, min(count.value, MAX_CARDS))]:
            devices = ctypes.c_int(0)
            if self._call(self._device_count, card, ctypes.byref(devices)) != 0:
                continue
            for device in range(max(0, min(devices.value, MAX_CARDS))):
                number = ctypes.c_int(_UNKNOWN_NUMBER)
                if self._call(self._logic_id, ctypes.byref(number), card, device) == 0 and number.value >= 0:
                    places[number.value] = (card, device)
        if not places:
            raise DcmiError("it knows no card")
        return places

    def _memory(self, card: int, device: int) -> tuple[int | None, int | None]:
        info = _HbmInfo()
        if self._call(self._hbm, card, device, ctypes.byref(info)) != 0 or info.memory_size == 0:
            return None, None
        return int(info.memory_usage) * _MIB, int(info.memory_size) * _MIB

    def _owners(self, card: int, device: int) -> dict[int, int] | None:
        if self._process_memory is None:
            return None
        entries, count = (_ProcessMemory * MAX_PROCESSES)(), ctypes.c_int(0)
        if self._call(self._process_memory, card, device, entries, ctypes.byref(count)) != 0:
            return None
        owners: dict[int, int] = {}
        for entry in entries[: max(0, min(count.value, MAX_PROCESSES))]:
            owners[int(entry.pid)] = owners.get(int(entry.pid), 0) + int(entry.bytes)
        return owners

    def _call(self, function: Callable[..., int], *arguments: Any) -> int:
        self._tick()
        return function(*arguments)

    def _function(self, name: str) -> Callable[..., int]:
        try:
            function = self._library[name]
        except AttributeError:
            raise DcmiError(f"{self.path} has no {name}") from None
        function.restype = ctypes.c_int
        return cast("Callable[..., int]", function)


def _open(names: Sequence[str]) -> tuple[str, int]:
    # dlopen as a foreign function: ctypes.CDLL(name) keeps the interpreter locked while constructors run.
    libc = ctypes.CDLL(None)
    libc.dlopen.restype = ctypes.c_void_p
    libc.dlopen.argtypes = (ctypes.c_char_p, ctypes.c_int)
    libc.dlerror.restype = ctypes.c_char_p
    reason = "no name to open"
    for name in names:
        handle = libc.dlopen(os.fsencode(name), os.RTLD_NOW | os.RTLD_LOCAL)
        if handle:
            return name, int(handle)
        reason = (libc.dlerror() or b"unknown").decode("utf-8", "replace")
    raise DcmiError(reason)


def _check(name: str, code: int) -> None:
    if code != 0:
        raise DcmiError(f"{name} returned {code}")
