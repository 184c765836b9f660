"""Who owns a block, in upstream's words (owner_paths.py says how they are written).

In: what the allocation itself says, pool and for driver memory the driver's flag word (record.h, MALLOC attr), and
the labels that the folds have found (native/kernel/owners.h). Out: the texts, and what else the flag word says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from msmemscope._kernel import FOLD_LABELS
from msmemscope.analysis.owner_paths import path_text
from msmemscope.folds.segments import GIANT_PAGES, HUGE_PAGES
from msmemscope.vocabulary import DeviceType, Flag, Pool

# Bits 56-63 of the flag word: the CANN component that asked (the driver's enumeration of module ids).
_NAMES = (
    "SLOG IDEDD IDEDH HCCL FMK HIAIENGINE DVPP RUNTIME CCE HDC DRV MDCFUSION MDCLOCATION MDCPERCEPTION MDCFSM "
    "MDCCOMMON MDCMONITOR MDCBSWP MDCDEFAULT MDCSC MDCPNC MLL DEVMM KERNEL LIBMEDIA CCECPU ASCENDDK ROS HCCP ROCE "
    "TEFUSION PROFILING DP APP TS TSDUMP AICPU LP TDT FE MD MB ME IMU IMP GE MDCFUSA CAMERA ASCENDCL TEEOS ISP SIS "
    "HSM DSS PROCMGR BBOX AIVECTOR TBE FV MDCMAP TUNE HSS FFTS OP UDF HICAID TSYNC AUDIO TPRT ASCENDCKERNEL ASYS "
    "ATRACE RTC SYSMONITOR AML"
)
MODULES = tuple(_NAMES.split())

_MODULE_SHIFT = 56

_POOLS = frozenset({Pool.PTA, Pool.PTA_WORKSPACE, Pool.MINDSPORE, Pool.ATB})


def module_name(flag_word: int) -> str:
    """The CANN component of a driver allocation; "UNKNOWN" for a number without a name."""
    number = flag_word >> _MODULE_SHIFT & 0xFF
    return MODULES[number] if number < len(MODULES) else "UNKNOWN"


def owner_of(pool: int, device_type: int, flag_word: int) -> str:
    """Upstream's first level(s): CANN@<module>, PTA, PTA_WORKSPACE, MINDSPORE or ATB; "" for host memory and CUDA."""
    if pool == Pool.HAL and device_type == DeviceType.NPU:
        return path_text(("CANN", module_name(flag_word)))
    return Pool(pool).name if pool in _POOLS else ""


OTHER = "other"
"""The owner of blocks of a process with more owners than are told apart."""

UNATTRIBUTED = "unattributed"
"""What nobody has named, in every report that tells owners."""

_LABELS = ("component", "process", "detail_1", "detail_2", "user_1", "user_2", "user_3")


def root_text(root: int) -> str:
    """The first level(s) of pool << 16 | device type << 8 | module."""
    return owner_of(root >> 16, root >> 8 & 255, (root & 255) << 56)


def owner_levels(owners: dict[str, Any]) -> dict[int, tuple[str, tuple[int, ...]]]:
    """By its number the first level(s) of every owner (MEMSCOPE_OWNER_COLUMNS) and the string ids of the seven below
    them, 0 for an empty one. Without those for which there was no room."""
    columns = (owners["owner"], owners["root"], *(owners[name] for name in _LABELS))
    rows = zip(*(column.tolist() for column in columns), strict=True)
    return {owner: (root_text(root), tuple(labels)) for owner, root, *labels in rows if owner}


def label_texts(labels: Iterable[int], text_of: Callable[[int], str]) -> Iterator[str]:
    """Of the labels of an owner, without empty ones: those that folds tell by themselves have ids of their own."""
    return (FOLD_LABELS.get(label) or text_of(label) for label in labels if label)


def owner_texts(owners: dict[str, Any], text_of: Callable[[int], str]) -> dict[int, str]:
    """By its number the text of every owner; text_of: a string id's. "" for blocks of host memory and CUDA that nobody
    has labelled."""
    texts = {0: OTHER}
    for owner, (root, labels) in owner_levels(owners).items():
        texts[owner] = path_text((root, *label_texts(labels, text_of)))
    return texts


def labels_of(owners: dict[str, Any]) -> set[int]:
    """String ids of the labels whose text the program gave."""
    found = {label for name in _LABELS for label in owners[name].tolist()}
    return found - FOLD_LABELS.keys() - {0}


def labelled_owners(owners: dict[str, Any]) -> list[int]:
    """Numbers of the owners of which more is known than their pool, or the part of CANN that asked."""
    known = [owners[name] != 0 for name in _LABELS]
    return [int(one) for one in owners["owner"][sum(known) > 0]]


def page_type(flag_word: int) -> str:
    """normal (4 KiB), huge (2 MiB) or giant (1 GiB) pages."""
    if flag_word & GIANT_PAGES:
        return "giant"
    return "huge" if flag_word & HUGE_PAGES else "normal"


def alloc_type(flags: int) -> str:
    """alloc: addressable memory (halMemAlloc); create: physical memory, to be mapped (halMemCreate)."""
    return "create" if flags & Flag.HANDLE else "alloc"
