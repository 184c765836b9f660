"""What the options come to: `Config`, the one record from which every other part reads what it shall do.

In: parsed values (config.py) or a stored record. Out: the values, and what follows from them by the coupling rules.
"""

from __future__ import annotations

from msmemscope.annotations import is_of
from msmemscope.options.facts import Facts

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

DEFAULT_OUTPUT = "memscopeDumpResults"
EVENTS = ("alloc", "free", "launch", "access")  # bit i of upstream's eventType; traceback has no bit
LEVELS = ("op", "kernel")  # bit i of levelType
ANALYSES = ("leaks", "decompose", "inefficient", "oom")  # bit i of analysisType
OWN_ANALYSES = (
    "audit",
    "compare",
    "coverage",
    "fragmentation",
    "health",
    "ledger",
    "peak",
    "peers",
    "phases",
    "unfreed",
    "watch",
)  # beside those of upstream's words; a test compares with the registry
ENTRY_POINTS = "msmemscope.analyses"  # the group in which other packages name theirs
LOG_LEVELS = ("debug", "info", "warning", "error")
COLLECT_MODES = ("immediate", "deferred")
FORMATS = ("csv", "db")
HOLDERS = ("exit", "step", "none")
OPERATORS = ("outer", "inner")

MAX_STEPS = 5
MAX_STEP = 2**32 - 1  # a step is 32 bits wide in a record
MAX_STACK_DEPTH = 1000
DEFAULT_STACK_DEPTH = 50  # of a stack named without a depth
MAX_OOM_TOP = 1000
MAX_DEVICE = 31
MAX_PATH_CHARS = 4096
MAX_COMPONENT_BYTES = 255
MAX_SEPARATORS = 32
MAX_WATCH_NAME = 254
NO_OUTPUT_ID = 2**32 - 1  # upstream's "no output id given"


class Watch(Facts):
    """One watched stretch: the output tensors of `start`, until `end` finishes."""

    start: str  # operator or kernel; may be empty
    output_id: int = NO_OUTPUT_ID
    end: str
    full_content: bool = False  # bytes instead of a checksum


class Config(Facts):
    """Every option's value. Frozen; `replaced()` makes a changed copy."""

    device: tuple[str, ...] = ("auto",)  # auto, cpu, npu, npu:N, cuda, cuda:N
    level: tuple[str, ...] = ("op",)
    dump_events: tuple[str, ...] = ("alloc", "free", "launch")  # what the user wants to see in the files
    traceback: bool = False
    python_stack: bool = True
    python_stack_depth: int = 32
    c_stack: bool = False
    c_stack_depth: int = DEFAULT_STACK_DEPTH
    analysis: tuple[str, ...] = ("leaks",)
    oom_top: int = 10
    analysis_options: tuple[str, ...] = ()  # "leaks.min_steps=40": of analyses, as texts (analysis/options.py)
    needed_events: tuple[str, ...] = ()  # of EVENTS: what named analyses of other packages need (analysis/asked.py)
    steps: tuple[int, ...] = ()  # empty: all
    watch: Watch | None = None
    compare: bool = False
    input_paths: tuple[str, ...] = ()
    output_path: str = DEFAULT_OUTPUT  # absolute once parsed
    format: str = "csv"
    operators_given: bool = False  # --events or --level was: then torch's operators are observed too
    format_given: bool = False  # it was asked for: files are written however large they become
    log_level: str = "info"
    collect_mode: str = "immediate"
    ring_mib: int = 16
    ring_wait_ms: int = 20
    holders: str = "exit"
    operators: str = "outer"
    effective: bool = False  # the once-only keys are fixed: the run has begun

    @property
    def collect_events(self) -> tuple[str, ...]:
        """What must be recorded: `dump_events` enlarged by the coupling rules, in the order of EVENTS."""
        wanted = {*self.dump_events, *self.needed_events}
        for analysis in self.analysis:
            wanted.update(ANALYSIS_NEEDS.get(analysis, ()))
        if wanted & {"alloc", "free", "access"}:
            wanted.update(("alloc", "free"))
        return tuple(event for event in EVENTS if event in wanted)

    @property
    def active_analysis(self) -> tuple[str, ...]:
        """`analysis` less what `--steps` switches off: a leak needs every step, and so does the OOM history."""
        return tuple(name for name in self.analysis if not (self.steps and name in ("leaks", "oom")))

    @property
    def looks_for_leaks(self) -> bool:
        """Whether leaks are looked for: as with upstream, under `oom` too."""
        return "leaks" in self.active_analysis or "oom" in self.active_analysis

    @property
    def records_owners(self) -> bool:
        """Whether modules and optimizers are asked what their tensors are."""
        return "decompose" in self.active_analysis

    @property
    def sorts(self) -> int:
        """What the hooks record beyond memory: a sum of memscope::Sort (native/hook/selection.h)."""
        collected = self.collect_events
        operators = "op" in self.level and "launch" in collected
        kernels = "kernel" in self.level and "launch" in collected
        inner = self.operators == "inner"
        return 1 * operators + 2 * kernels + 4 * ("access" in collected) + 8 * inner

    @property
    def observes_operators(self) -> bool:
        """Whether torch's operators are observed. Not by the defaults alone, which would cost every program a build,
        and a tenth of its time, for rows that most never look at. Watched blocks are looked at beside them."""
        return (
            "op" in self.level
            and bool(self.sorts & (1 | 4))
            and (self.operators_given or "access" in self.collect_events or "launch" in self.needed_events)
        ) or self.watch is not None

    @classmethod
    def from_dict(cls, values: Mapping[str, object]) -> Config:
        """The inverse of `as_dict()` (session.json, run.json). Unknown keys are ignored, missing ones default.

        Raises ValueError for a value that a field cannot hold.
        """
        config = cls(**_known(cls, values))
        for name, (least, most) in _RANGES.items():
            value = getattr(config, name)
            if any(not least <= one <= most for one in (value if isinstance(value, tuple) else (value,))):
                raise ValueError(f"{name} is {value!r:.100}, which is out of range")
        for name, words in _WORDS.items():
            value = getattr(config, name)
            if not set(words).issuperset(value if isinstance(value, tuple) else (value,)):
                raise ValueError(f"{name} is {value!r:.100}, which is none of {', '.join(words)}")
        return config


_RANGES = {
    "steps": (0, MAX_STEP),
    "oom_top": (1, MAX_OOM_TOP),
    "python_stack_depth": (0, MAX_STACK_DEPTH),
    "c_stack_depth": (0, MAX_STACK_DEPTH),
}
_WORDS = {
    "level": LEVELS,
    "dump_events": EVENTS,
    "needed_events": EVENTS,
    "format": FORMATS,
    "holders": HOLDERS,
    "operators": OPERATORS,
    "log_level": LOG_LEVELS,
    "collect_mode": COLLECT_MODES,
}


def _known(cls: type[Facts], values: Mapping[str, object]) -> dict[str, Any]:
    known: dict[str, Any] = {}
    for name, annotation in cls.__annotations__.items():
        if name not in values:
            continue
        value = values[name]
        if annotation == "Watch | None":
            if value is not None and not isinstance(value, dict):
                raise ValueError(f"{name} is no record")
            known[name] = None if value is None else _watch(value)
        elif is_of(value, annotation):
            known[name] = tuple(value) if isinstance(value, list) else value
        else:
            raise ValueError(f"{name} is {value!r:.100}, which is no {annotation}")
    return known


def _watch(values: Mapping[str, object]) -> Watch:
    try:
        return Watch(**_known(Watch, values))
    except TypeError as error:
        raise ValueError(f"watch: {error}") from None


# Upstream's coupling rules. What an analysis of ours needs itself is among it: a test compares.
ANALYSIS_NEEDS = {
    "leaks": ("alloc", "free"),
    "decompose": ("alloc", "free", "access"),
    "inefficient": ("alloc", "free", "access", "launch"),
    "oom": ("alloc", "free"),
}
