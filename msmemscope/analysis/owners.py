"""Who owns a block, as far as the allocation itself says: a framework's pool, or the part of CANN that asked.

In: pool and, for driver memory, the driver's flag word (record.h, MALLOC attr). Out: upstream's owner texts, levels
joined by "@", and what else the flag word says.
"""

from __future__ import annotations

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
        return f"CANN@{module_name(flag_word)}"
    return Pool(pool).name if pool in _POOLS else ""


def page_type(flag_word: int) -> str:
    """normal (4 KiB), huge (2 MiB) or giant (1 GiB) pages."""
    if flag_word & GIANT_PAGES:
        return "giant"
    return "huge" if flag_word & HUGE_PAGES else "normal"


def alloc_type(flags: int) -> str:
    """alloc: addressable memory (halMemAlloc); create: physical memory, to be mapped (halMemCreate)."""
    return "create" if flags & Flag.HANDLE else "alloc"
