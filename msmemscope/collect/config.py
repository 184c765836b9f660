"""The options: one declaration each, from which the command line, the Python API, config.json and
docs/options.md are made.

In: texts as a user writes them (command line, `msmemscope.config(...)`) or a config.json. Out: a `Config`, what
the rest of the tool reads. Nothing here touches the file system except `read_config_json` and
`write_config_json`.

This module is imported inside ranks, so it must cost next to nothing: the standard library's dataclasses, re,
enum and json would each cost more than all of it. `Facts` below stands in for a frozen dataclass.
"""

from __future__ import annotations

import os

from msmemscope.errors import InputError, UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from typing_extensions import dataclass_transform
else:

    def dataclass_transform(**_kwargs):
        return lambda cls: cls


class OptionError(UsageError, ValueError):
    """A wrong option; also a ValueError, which is what `msmemscope.config()` promises."""


@dataclass_transform(kw_only_default=True, frozen_default=True)
class Facts:
    """A frozen record of its class's annotated fields: keyword arguments, equality, hash and repr."""

    def __init__(self, **values: object) -> None:
        cls = type(self)
        for name in cls.__annotations__:
            if name not in values and not hasattr(cls, name):
                raise TypeError(f"{cls.__name__}() needs {name}=")
            object.__setattr__(self, name, values.pop(name, getattr(cls, name, None)))
        if values:
            raise TypeError(f"{cls.__name__}() has no field {next(iter(values))!r}")

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{type(self).__name__} is frozen: use replaced({name}=...)")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"{type(self).__name__} is frozen")

    def as_dict(self) -> dict[str, object]:
        """Field name → value, in order of declaration; tuples become lists and records become dicts."""
        return {name: _plain(getattr(self, name)) for name in type(self).__annotations__}

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and self.as_dict() == other.as_dict()

    def __hash__(self) -> int:
        return hash(tuple(getattr(self, name) for name in type(self).__annotations__))

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={getattr(self, name)!r}" for name in type(self).__annotations__)
        return f"{type(self).__name__}({fields})"


def _plain(value: object) -> object:
    if isinstance(value, Facts):
        return value.as_dict()
    return list(value) if isinstance(value, tuple) else value


# --- What the rest of the tool reads ---------------------------------------------------------------------------

DEFAULT_OUTPUT = "memscopeDumpResults"
EVENTS = ("alloc", "free", "launch", "access")  # bit i of upstream's eventType; traceback has no bit
LEVELS = ("op", "kernel")  # bit i of levelType
ANALYSES = ("leaks", "decompose", "inefficient", "oom")  # bit i of analysisType
LOG_LEVELS = ("debug", "info", "warning", "error")
COLLECT_MODES = ("immediate", "deferred")
FORMATS = ("csv", "db")

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
    steps: tuple[int, ...] = ()  # empty: all
    watch: Watch | None = None
    compare: bool = False
    input_paths: tuple[str, ...] = ()
    output_path: str = DEFAULT_OUTPUT  # absolute once parsed
    format: str = "csv"
    log_level: str = "info"
    collect_mode: str = "immediate"
    ring_mib: int = 16
    ring_wait_ms: int = 20
    effective: bool = False  # the once-only keys are fixed: the run has begun

    def replaced(self, **changes: object) -> Config:
        """A copy with these fields changed."""
        values = {name: getattr(self, name) for name in Config.__annotations__}
        return Config(**{**values, **changes})

    @property
    def collect_events(self) -> tuple[str, ...]:
        """What must be recorded: `dump_events` enlarged by the coupling rules, in the order of EVENTS."""
        wanted = set(self.dump_events)
        for analysis in self.analysis:
            wanted.update(_ANALYSIS_NEEDS[analysis])
        if wanted & {"alloc", "free", "access"}:
            wanted.update(("alloc", "free"))
        return tuple(event for event in EVENTS if event in wanted)

    @property
    def active_analysis(self) -> tuple[str, ...]:
        """`analysis` less what `--steps` switches off: a leak needs every step, and so does the OOM history."""
        return tuple(name for name in self.analysis if not (self.steps and name in ("leaks", "oom")))

    @property
    def driver_leaks(self) -> bool:
        """Whether blocks of the driver are checked for leaks: not from a run that began in the middle."""
        return "leaks" in self.active_analysis and self.collect_mode == "immediate"

    @property
    def operator_rows(self) -> bool:
        """Whether OP_LAUNCH rows (and accesses by framework operators) are wanted."""
        return "op" in self.level and "launch" in self.dump_events

    @property
    def kernel_rows(self) -> bool:
        """Whether KERNEL_LAUNCH rows are wanted."""
        return "kernel" in self.level and "launch" in self.dump_events

    def selects_device(self, kind: str, index: int = 0) -> bool:
        """Whether events of `kind` ("cpu", "npu", "cuda") and `index` are recorded. `auto` takes every
        accelerator; whether the cpu counts under `auto` depends on there being one, which only the process
        itself knows, so it is answered with True here."""
        if "auto" in self.device or kind in self.device:
            return True
        return f"{kind}:{index}" in self.device

    @classmethod
    def from_dict(cls, values: Mapping[str, object]) -> Config:
        """The inverse of `as_dict()` (session.json, run.json). Unknown keys are ignored, missing ones default."""
        known: dict[str, object] = {}
        for name in cls.__annotations__:
            if name in values:
                value = values[name]
                known[name] = tuple(value) if isinstance(value, list) else value
        watch = known.get("watch")
        if isinstance(watch, dict):
            known["watch"] = Watch(**watch)
        return cls(**known)  # type: ignore[arg-type]


_ANALYSIS_NEEDS = {
    "leaks": ("alloc", "free"),
    "decompose": ("alloc", "free", "access"),
    "inefficient": ("alloc", "free", "access", "launch"),
    "oom": ("alloc", "free"),
}


# --- Grammars: text → fields. Each raises _Bad with "takes ...; got ..." -----------------------------------------


class _Bad(Exception):
    """A text that does not fit its grammar; the caller puts the option's name in front."""


def _items(text: str) -> list[str]:
    """A list, separated by commas of either width. Spaces around an item do not count."""
    return [item.strip() for item in text.replace("，", ",").split(",")]


def _number(text: str, low: int, high: int) -> int | None:
    """A decimal without sign or leading zero, in [low, high]; None when it is anything else."""
    if not (text.isascii() and text.isdigit()) or (len(text) > 1 and text[0] == "0") or len(text) > 10:
        return None
    value = int(text)
    return value if low <= value <= high else None


def _shown(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:57] + "...")


def _choices(text: str, allowed: tuple[str, ...], takes: str) -> list[str]:
    """The items of a list of fixed words, each once, in the order of `allowed`."""
    items = _items(text)
    for item in items:
        if item not in allowed:
            raise _Bad(f"takes {takes}; got {_shown(item or text)}")
    return [word for word in allowed if word in items]


def _parse_steps(text: str, notes: list[str]) -> dict[str, object]:
    steps: list[int] = []
    for item in _items(text):
        step = _number(item, 1, MAX_STEP)
        if step is None:
            raise _Bad(f"takes step numbers from 1 on, separated by commas; got {_shown(item or text)}")
        if step not in steps:
            steps.append(step)
    if len(steps) > MAX_STEPS:
        raise _Bad(f"takes at most {MAX_STEPS} step numbers; got {len(steps)}")
    return {"steps": tuple(steps)}


def _parse_call_stack(text: str, notes: list[str]) -> dict[str, object]:
    fields: dict[str, object] = {"python_stack": False, "c_stack": False}
    items = _items(text)
    if items == ["none"]:
        return fields
    for item in items:
        name, colon, depth_text = item.partition(":")
        depth = _number(depth_text, 0, MAX_STACK_DEPTH) if colon else DEFAULT_STACK_DEPTH
        if name not in ("python", "c") or depth is None:
            takes = f"takes python[:depth] and c[:depth] with a depth of 0 to {MAX_STACK_DEPTH}, or none"
            raise _Bad(f"{takes}; got {_shown(item or text)}")
        if fields[f"{name}_stack"]:
            raise _Bad(f"names {name} twice")
        fields[f"{name}_stack"] = True
        fields[f"{name}_stack_depth"] = depth
    return fields


def _parse_analysis(text: str, notes: list[str]) -> dict[str, object]:
    fields: dict[str, object] = {}
    words: list[str] = []
    for item in _items(text):
        name, colon, top_text = item.partition(":")
        if name == "oom" and colon:
            top = _number(top_text, 1, MAX_OOM_TOP)
            if top is None:
                raise _Bad(f"takes oom:K with K from 1 to {MAX_OOM_TOP}; got {_shown(item)}")
            fields["oom_top"] = top
            words.append("oom")
        else:
            words.append(item)
    chosen = _choices(
        ",".join(words),
        (*ANALYSES, "none"),
        "leaks, decompose, inefficient, oom or oom:K, separated by commas, or none",
    )
    fields["analysis"] = _unless_none(chosen, "analysis", notes)
    return fields


def _parse_events(text: str, notes: list[str]) -> dict[str, object]:
    chosen = _choices(
        text,
        (*EVENTS, "traceback", "none"),
        "alloc, free, launch, access and traceback, separated by commas, or none",
    )
    chosen = list(_unless_none(chosen, "events", notes))
    return {
        "dump_events": tuple(event for event in chosen if event != "traceback"),
        "traceback": "traceback" in chosen,
    }


def _unless_none(chosen: list[str], name: str, notes: list[str]) -> tuple[str, ...]:
    """`none` clears the whole list, whatever stands beside it."""
    if "none" not in chosen:
        return tuple(chosen)
    if len(chosen) > 1:
        notes.append(f"{name}: none clears the whole list, so {', '.join(chosen[:-1])} is ignored")
    return ()


def _parse_level(text: str, notes: list[str]) -> dict[str, object]:
    if not text.strip():
        return {"level": ()}
    items = _items(text)
    for old, new in (("0", "op"), ("1", "kernel")):
        if old in items:
            notes.append(f"level {old} is deprecated: write {new}")
            items = [new if item == old else item for item in items]
    return {"level": tuple(_choices(",".join(items), LEVELS, "op and kernel, separated by a comma"))}


def _parse_device(text: str, notes: list[str]) -> dict[str, object]:
    takes = f"takes auto, cpu, npu, npu:N, cuda, cuda:N with N from 0 to {MAX_DEVICE}, separated by commas"
    chosen: list[str] = []
    for item in _items(text):
        kind, colon, index = item.partition(":")
        valid = kind in ("npu", "cuda") if colon else item in ("auto", "cpu", "npu", "cuda")
        if not valid or (colon and _number(index, 0, MAX_DEVICE) is None):
            raise _Bad(f"{takes}; got {_shown(item or text)}")
        if item not in chosen:
            chosen.append(item)
    # The whole kind says more than one card of it.
    whole = {"npu", "cuda"} if "auto" in chosen else {"npu", "cuda"} & set(chosen)
    chosen = [item for item in chosen if not (":" in item and item.partition(":")[0] in whole)]
    return {"device": tuple(chosen)}


def _parse_watch(text: str, notes: list[str]) -> dict[str, object]:
    takes = "takes start[:output],end[,full-content]"
    parts = _items(text)
    if not 2 <= len(parts) <= 3:
        raise _Bad(f"{takes}; got {_shown(text)}")
    start, colon, output = parts[0].rpartition(":")
    output_id = NO_OUTPUT_ID
    if colon:
        number = _number(output, 0, NO_OUTPUT_ID - 1)
        if number is None:
            raise _Bad(f"{takes} with a number as output; got {_shown(output)}")
        output_id = number
    else:
        start = parts[0]
    if not parts[1]:
        raise _Bad(f"{takes}; the end is missing in {_shown(text)}")
    if len(parts) == 3 and parts[2] != "full-content":
        raise _Bad(f"{takes}; got {_shown(parts[2])} as third part")
    for name in (start, parts[1]):
        if len(name) > MAX_WATCH_NAME:
            raise _Bad(f"takes names of at most {MAX_WATCH_NAME} characters; got {len(name)}")
    return {"watch": Watch(start=start, output_id=output_id, end=parts[1], full_content=len(parts) == 3)}


def _parse_output_path(text: str, notes: list[str]) -> dict[str, object]:
    if not text.strip():
        raise _Bad("takes a directory; got a blank")
    if text[0] in "=+-@":
        raise _Bad(f"takes a directory whose name does not begin with {text[0]}: write ./{text[:60]}")
    for char in text:
        plain = (char.isascii() and char.isalnum()) or char in "./_-~" or char.isspace()
        if not plain and not "\u4e00" <= char <= "\u9fa5":
            raise _Bad(f"takes letters, digits, . / _ - ~ and spaces; got {char!r} in {_shown(text)}")
    path = os.path.abspath(os.path.expanduser(text))
    if len(text) > MAX_PATH_CHARS or len(path) > MAX_PATH_CHARS:
        raise _Bad(f"takes a path of at most {MAX_PATH_CHARS} characters; got {max(len(text), len(path))}")
    if any(len(os.fsencode(part)) > MAX_COMPONENT_BYTES for part in path.split("/")):
        raise _Bad(f"takes names of at most {MAX_COMPONENT_BYTES} bytes between the slashes of {_shown(text)}")
    if path.count("/") > MAX_SEPARATORS:
        raise _Bad(f"takes at most {MAX_SEPARATORS} nested directories; got {path.count('/')}")
    return {"output_path": path}


def _parse_input_path(text: str, notes: list[str]) -> dict[str, object]:
    if len(text) > MAX_PATH_CHARS:
        raise _Bad(f"takes paths of at most {MAX_PATH_CHARS} characters together; got {len(text)}")
    paths = _items(text)
    if len(paths) != 2 or not all(paths):
        raise _Bad(f"takes exactly two files, separated by a comma; got {_shown(text)}")
    return {"input_paths": tuple(os.path.abspath(path) for path in paths)}


def _parse_format(text: str, notes: list[str]) -> dict[str, object]:
    if text not in FORMATS:
        raise _Bad(f"takes csv or db; got {_shown(text)}")
    return {"format": text}


def _parse_log_level(text: str, notes: list[str]) -> dict[str, object]:
    if text == "warn":
        notes.append("log level warn is deprecated: write warning")
        text = "warning"
    if text not in LOG_LEVELS:
        raise _Bad(f"takes debug, info, warning or error; got {_shown(text)}")
    return {"log_level": text}


def _parse_collect_mode(text: str, notes: list[str]) -> dict[str, object]:
    if text not in COLLECT_MODES:
        raise _Bad(f"takes immediate or deferred; got {_shown(text)}")
    return {"collect_mode": text}


def _parse_ring_size(text: str, notes: list[str]) -> dict[str, object]:
    value = _number(text, 1, 1024)
    if value is None or value & (value - 1):
        raise _Bad(f"takes a power of two from 1 to 1024 (MiB); got {_shown(text)}")
    return {"ring_mib": value}


def _parse_ring_wait(text: str, notes: list[str]) -> dict[str, object]:
    value = _number(text, 0, 1000)
    if value is None:
        raise _Bad(f"takes 0 to 1000 (milliseconds); got {_shown(text)}")
    return {"ring_wait_ms": value}


def _parse_nothing(text: str, notes: list[str]) -> dict[str, object]:
    return {}


def _parse_compare(text: str, notes: list[str]) -> dict[str, object]:
    return {"compare": True}


# --- The declarations -------------------------------------------------------------------------------------------


class Option(Facts):
    """One option. `name` is its keyword in `msmemscope.config()`; the flags are what the command line takes."""

    name: str
    flags: tuple[str, ...]
    deprecated: tuple[str, ...] = ()  # old flags, still taken with a notice
    grammar: str = ""  # what follows the flag; empty: a switch
    default: str = ""
    range: str = ""
    help: str
    cost: str = "none"
    field: str = ""  # the main field of Config it sets; empty: handled by the command line itself
    api: bool = False  # also a keyword of msmemscope.config()
    cli: bool = True
    once: bool = False  # fixed once a run has begun
    ours: bool = False  # not an option of upstream
    later: Mapping[str, str] = {}  # value ("" = any) → what is missing in this version, a full sentence
    parse: Callable[[str, list[str]], dict[str, object]] = _parse_nothing

    @property
    def old_keywords(self) -> tuple[str, ...]:
        """Deprecated keywords of `msmemscope.config()`."""
        return tuple(flag.lstrip("-").replace("-", "_") for flag in self.deprecated) if self.api else ()


_ASCEND = "arrives with the Ascend sources"
_OPERATORS = "arrives with the operator observer"

OPTIONS: tuple[Option, ...] = (
    Option(
        name="help",
        flags=("-h", "--help"),
        help="Show this page and exit.",
    ),
    Option(
        name="version",
        flags=("-V", "--version"),
        help="Show the version and exit.",
    ),
    Option(
        name="verbose",
        flags=("-v", "--verbose", "--debug"),
        help="Same as --log-level debug. An explicit --log-level wins, and -v wins over -q.",
    ),
    Option(
        name="quiet",
        flags=("-q", "--quiet"),
        help="Same as --log-level error.",
    ),
    Option(
        name="output_path",
        flags=("-o", "--output-path"),
        deprecated=("--output",),
        grammar="DIR",
        default="./memscopeDumpResults",
        range=f"a path of at most {MAX_PATH_CHARS} characters, {MAX_SEPARATORS} levels and {MAX_COMPONENT_BYTES} "
        "bytes a name; letters, digits, . / _ - ~, white space and CJK ideographs",
        help="Where runs are written. Each run makes a directory of its own below it.",
        cost="disk: raw events are kept compressed for later analysis",
        field="output_path",
        api=True,
        once=True,
        parse=_parse_output_path,
    ),
    Option(
        name="format",
        flags=("--format",),
        deprecated=("--data-format",),
        grammar="csv|db",
        default="csv",
        help="Format of the per-device files: CSV, or an SQLite database for MindStudio Insight.",
        cost="written after the program has ended; db takes longer than csv",
        field="format",
        api=True,
        once=True,
        parse=_parse_format,
    ),
    Option(
        name="device",
        flags=("--device",),
        grammar="auto|cpu|npu[:N]|cuda[:N],...",
        default="auto",
        range=f"N from 0 to {MAX_DEVICE}",
        help="Devices to record. auto: every accelerator that the process drives, or the cpu when it drives none. "
        "A whole kind (npu) includes its cards (npu:3).",
        cost="proportional to the events of the chosen devices; others cost one comparison",
        field="device",
        api=True,
        parse=_parse_device,
        later={"npu": f"recording an Ascend NPU {_ASCEND}; other devices are recorded"},
    ),
    Option(
        name="events",
        flags=("--events",),
        grammar="alloc,free,launch,access,traceback|none",
        default="alloc,free,launch",
        help="Kinds of rows in the per-device files. An analysis may record more than that (alloc and free imply "
        "each other, access implies both, and every analysis adds what it needs), but only these are written.",
        cost="launch and access multiply the number of events",
        field="dump_events",
        api=True,
        parse=_parse_events,
        later={
            "launch": f"recording operator and kernel launches {_OPERATORS}; memory events are recorded",
            "access": f"recording accesses {_OPERATORS}; memory events are recorded",
            "traceback": "recording Python calls is not in this version; memory events are recorded",
        },
    ),
    Option(
        name="level",
        flags=("--level",),
        grammar="op,kernel",
        default="op",
        help="Whose launches are recorded: framework operators, device kernels, or both; an empty list for neither. "
        "The old 0 and 1 still mean op and kernel.",
        cost="kernel sees several launches for each operator",
        field="level",
        api=True,
        parse=_parse_level,
        later={
            "op": f"recording operator launches {_OPERATORS}; memory events are recorded",
            "kernel": f"recording kernel launches {_ASCEND}; memory events are recorded",
        },
    ),
    Option(
        name="call_stack",
        flags=("--call-stack",),
        grammar="python[:DEPTH],c[:DEPTH]|none",
        default="python:32",
        range=f"DEPTH from 0 to {MAX_STACK_DEPTH}; {DEFAULT_STACK_DEPTH} when it is left out; 0 leaves the field empty",
        help="Call stacks to record with each memory event. Without a Python stack no source line can be named.",
        cost="grows with the depth; measured in docs/overhead.md",
        field="python_stack",
        api=True,
        parse=_parse_call_stack,
    ),
    Option(
        name="analysis",
        flags=("--analysis",),
        grammar="leaks,decompose,inefficient,oom[:K]|none",
        default="leaks",
        range=f"K, the number of largest blocks shown, from 1 to {MAX_OOM_TOP}; 10 when it is left out",
        help="Analyses to run when the program has ended.",
        cost="none inside the program, beyond the events that an analysis adds",
        field="analysis",
        api=True,
        parse=_parse_analysis,
        later={
            "decompose": "attributing bytes to their owners is not in this version; leaks are",
            "inefficient": "finding blocks held too long is not in this version; leaks are",
            "oom": "details of an out-of-memory error are not in this version; leaks are",
        },
    ),
    Option(
        name="steps",
        flags=("--steps",),
        grammar="N[,N...]",
        default="all steps",
        range=f"1 to {MAX_STEPS} different numbers from 1 on",
        help="Write only the rows of these steps. Leak analysis is off then, since it needs every step.",
        field="steps",
        parse=_parse_steps,
    ),
    Option(
        name="watch",
        flags=("--watch",),
        grammar="START[:OUTPUT],END[,full-content]",
        default="off",
        range=f"names of at most {MAX_WATCH_NAME} characters; START may be empty, its comma may not be left out",
        help="Check the output tensors of operator START before and after every operator until END finishes: "
        "a checksum, or with full-content the bytes.",
        cost="copies every watched tensor to the host twice per operator",
        field="watch",
        api=True,
        once=True,
        parse=_parse_watch,
        later={"": f"watching tensors {_OPERATORS}; everything else is recorded"},
    ),
    Option(
        name="compare",
        flags=("--compare",),
        default="off",
        help="Compare the two files of --input-path instead of running a program.",
        field="compare",
        later={"": "comparing two runs is not in this version; nothing is run"},
        parse=_parse_compare,
    ),
    Option(
        name="input_path",
        flags=("-i", "--input-path"),
        deprecated=("--input",),
        grammar="FILE,FILE",
        range=f"exactly two existing, readable, regular files; {MAX_PATH_CHARS} characters together",
        help="The two files to compare; only together with --compare.",
        field="input_paths",
        parse=_parse_input_path,
    ),
    Option(
        name="collect_mode",
        flags=("--collect-mode",),
        grammar="immediate|deferred",
        default="immediate",
        help="When recording begins: with the program, or at msmemscope.start() in its code.",
        cost="deferred: address and size only until start()",
        field="collect_mode",
        parse=_parse_collect_mode,
    ),
    Option(
        name="log_level",
        flags=("--log-level",),
        grammar="debug|info|warning|error",
        default="info",
        help="How much the tool says of itself on stderr.",
        field="log_level",
        parse=_parse_log_level,
    ),
    Option(
        name="ring_size",
        flags=("--ring-size",),
        grammar="MIB",
        default="16",
        range="a power of two from 1 to 1024",
        help="Shared memory for each process's events until they are stored.",
        cost="this much of /dev/shm per process",
        field="ring_mib",
        ours=True,
        parse=_parse_ring_size,
    ),
    Option(
        name="ring_wait",
        flags=("--ring-wait",),
        grammar="MS",
        default="20",
        range="0 to 1000",
        help="How long a process waits, once, when its ring is full, before it drops and counts events; 0: never.",
        cost="at most this long per time the ring fills up",
        field="ring_wait_ms",
        ours=True,
        parse=_parse_ring_wait,
    ),
)

BY_NAME = {option.name: option for option in OPTIONS}


# --- From texts to a Config -------------------------------------------------------------------------------------


class Parsed(Facts):
    """A Config and what must be said about it: `warnings` (deprecations, contradictions) and `missing`
    (what was asked for and is not in this version)."""

    config: Config
    warnings: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()


def parse_command_line(
    texts: Mapping[str, str], *, switches: Iterable[str] = (), old_flags: Iterable[str] = ()
) -> Parsed:
    """Option name → text as written, the names of the switches given, and the deprecated flags met, as a Config
    that is effective. Raises OptionError with one line that names the flag."""
    given = set(switches)
    warnings: list[str] = []
    for flag in old_flags:
        warnings.append(f"{flag} is deprecated: use {long_flag(_option_of_flag(flag))}")
    fields: dict[str, object] = {"output_path": os.path.abspath(DEFAULT_OUTPUT), "effective": True}
    if "quiet" in given:
        fields["log_level"] = "error"
    if "verbose" in given:
        fields["log_level"] = "debug"
    if "compare" in given:
        fields["compare"] = True
    for name, text in texts.items():
        fields.update(_parsed(BY_NAME[name], long_flag(BY_NAME[name]), text, warnings))
    config = Config(**fields)  # type: ignore[arg-type]
    if config.traceback:
        warnings.append("--events traceback works only through msmemscope.config(events=...) and is ignored here")
        config = config.replaced(traceback=False)
    if config.compare and not config.input_paths:
        raise OptionError("--compare needs two files: add --input-path FILE,FILE")
    if config.input_paths and not config.compare:
        raise OptionError("--input-path is only for comparing two files: add --compare")
    if config.steps and "leaks" in config.analysis:
        warnings.append("--steps switches the leak analysis off: it needs every step")
    missing = [note for name in texts for note in _missing(BY_NAME[name], config, long_flag(BY_NAME[name]))]
    return Parsed(config=config, warnings=tuple(warnings), missing=tuple(missing))


def parse_keywords(keywords: Mapping[str, object], current: Config | None = None) -> Parsed:
    """The keywords of `msmemscope.config()` as a Config. Like upstream, every call starts from the defaults and
    collects from start() on; format, output_path and watch keep the values of `current` once that is effective.

    Raises TypeError for a value that is not text, OptionError (a ValueError) for anything else that is wrong.
    """
    if not keywords:
        raise OptionError("msmemscope.config() needs at least one keyword, such as device='cpu'")
    locked = current is not None and current.effective
    names = {option.name: option for option in OPTIONS if option.api}
    for option in OPTIONS:
        names.update(dict.fromkeys(option.old_keywords, option))
    warnings: list[str] = []
    seen: set[str] = set()
    fields: dict[str, object] = {"output_path": os.path.abspath(DEFAULT_OUTPUT)}
    if current is not None and locked:
        fields = {option.field: getattr(current, option.field) for option in OPTIONS if option.once}
    for keyword, value in keywords.items():
        found = names.get(keyword)
        if found is None:
            allowed = ", ".join(option.name for option in OPTIONS if option.api)
            raise OptionError(f"msmemscope.config() has no keyword {_shown(keyword)}: it takes {allowed}")
        if not isinstance(value, str):
            raise TypeError(f"msmemscope.config({keyword}=...) takes text; got {type(value).__name__}")
        if keyword in found.old_keywords:
            warnings.append(f"keyword {keyword} is deprecated: use {found.name}")
        if found.name in seen:
            warnings.append(f"{found.name} is given twice: the last one counts")
        seen.add(found.name)
        parsed = _parsed(found, found.name, value, warnings)
        if found.once and locked:
            warnings.append(f"{found.name} is fixed once recording was configured: the new value is ignored")
        else:
            fields.update(parsed)
    fields.update(collect_mode="deferred", effective=True)
    config = Config(**fields)  # type: ignore[arg-type]
    missing = [note for name in sorted(seen) for note in _missing(BY_NAME[name], config, name)]
    return Parsed(config=config, warnings=tuple(warnings), missing=tuple(missing))


def _parsed(option: Option, label: str, text: str, warnings: list[str]) -> dict[str, object]:
    notes: list[str] = []
    try:
        fields = option.parse(text, notes)
    except _Bad as error:
        raise OptionError(f"{label} {error}") from None
    warnings += notes
    return fields


def _missing(option: Option, config: Config, label: str) -> list[str]:
    """What `option`, given explicitly, asks for that this version does not have."""
    value = getattr(config, option.field) if option.field else ()
    words: set[str] = set()
    if isinstance(value, tuple):
        words = {str(item).partition(":")[0] for item in value}
    if option.name == "events" and config.traceback:
        words.add("traceback")
    return [
        f"{label} {word}: {note}" if word else f"{label}: {note}"
        for word, note in option.later.items()
        if (word in words if word else bool(value))
    ]


def _option_of_flag(flag: str) -> Option:
    return next(option for option in OPTIONS if flag in option.flags + option.deprecated)


def long_flag(option: Option) -> str:
    """The flag by which messages and documents call an option."""
    return next(flag for flag in option.flags if flag.startswith("--"))


# --- config.json, in upstream's keys ----------------------------------------------------------------------------


def to_config_json(config: Config) -> dict[str, object]:
    """Upstream's config.json (formats.md §7), plus the key `msmemscope` for what upstream has no word for."""
    watch = config.watch
    return {
        "enableCStack": config.c_stack,
        "enablePyStack": config.python_stack,
        "enableCompare": config.compare,
        "cStackDepth": config.c_stack_depth,
        "pyStackDepth": config.python_stack_depth,
        "levelType": _bits(config.level, LEVELS),
        "eventType": _bits(config.collect_events, EVENTS),
        "dumpEventType": _bits(config.dump_events, EVENTS),
        "analysisType": _bits(config.analysis, ANALYSES),
        "oomTopK": config.oom_top,
        "collectMode": COLLECT_MODES.index(config.collect_mode),
        "outputDir": config.output_path,
        "dataFormat": FORMATS.index(config.format),
        "collectAllNpu": "npu" in config.device or "auto" in config.device,
        "collectCpu": "cpu" in config.device,
        "npuSlots": sum(1 << int(item[4:]) for item in config.device if item.startswith("npu:")),
        "logLevel": LOG_LEVELS.index(config.log_level),
        "isEffective": config.effective,
        "SelectedStepList": {
            "stepIdList": [*config.steps, *[0] * (MAX_STEPS - len(config.steps))],
            "stepCount": len(config.steps),
        },
        "watchConfig": {
            "isWatched": watch is not None,
            "fullContent": watch is not None and watch.full_content,
            "start": watch.start if watch else "",
            "end": watch.end if watch else "",
            "outputId": watch.output_id if watch else NO_OUTPUT_ID,
        },
        "msmemscope": {
            "device": list(config.device),
            "traceback": config.traceback,
            "ring_mib": config.ring_mib,
            "ring_wait_ms": config.ring_wait_ms,
        },
    }


def from_config_json(values: Mapping[str, object]) -> Parsed:
    """A Config from upstream's keys, written by us or by upstream. A missing or mistyped key keeps its default
    and is told in `warnings`; a stack depth beyond the limit is cut, as upstream does."""
    warnings: list[str] = []

    def get(name: str, kind: type, default: object) -> object:
        value = values.get(name)
        # bool is an int for Python, but not for this file
        if isinstance(value, kind) and (kind is not int or (not isinstance(value, bool) and value >= 0)):  # type: ignore[operator]
            return value
        warnings.append(f"config.json: {name} is {'missing' if value is None else 'not valid'}, its default is used")
        return default

    def word(name: str, words: tuple[str, ...]) -> str:
        index = get(name, int, -1)
        if isinstance(index, int) and index >= len(words):
            warnings.append(f"config.json: {name} is {index}, beyond {len(words) - 1}: its default is used")
            index = -1
        return words[index] if isinstance(index, int) and index >= 0 else ""

    fields: dict[str, object] = {
        "c_stack": get("enableCStack", bool, False),
        "python_stack": get("enablePyStack", bool, True),
        "compare": get("enableCompare", bool, False),
        "c_stack_depth": min(int(str(get("cStackDepth", int, DEFAULT_STACK_DEPTH))), MAX_STACK_DEPTH),
        "python_stack_depth": min(int(str(get("pyStackDepth", int, 32))), MAX_STACK_DEPTH),
        "level": _words(get("levelType", int, 1), LEVELS),
        "dump_events": _words(get("dumpEventType", int, 7), EVENTS),
        "analysis": _words(get("analysisType", int, 1), ANALYSES),
        "oom_top": min(max(int(str(get("oomTopK", int, 10))), 1), MAX_OOM_TOP),
        "collect_mode": word("collectMode", COLLECT_MODES) or "immediate",
        "format": word("dataFormat", FORMATS) or "csv",
        "log_level": word("logLevel", LOG_LEVELS) or "info",
        "effective": get("isEffective", bool, False),
    }
    try:
        fields.update(_parse_output_path(str(get("outputDir", str, DEFAULT_OUTPUT)), []))
    except _Bad as error:
        raise InputError(f"config.json: outputDir {error}") from None
    selected = get("SelectedStepList", dict, {})
    if isinstance(selected, dict):
        ids, count = selected.get("stepIdList", []), selected.get("stepCount", 0)
        if isinstance(ids, list) and isinstance(count, int) and 0 <= count <= MAX_STEPS:
            fields["steps"] = tuple(step for step in ids[:count] if isinstance(step, int) and 0 < step <= MAX_STEP)
    watch = get("watchConfig", dict, {})
    if isinstance(watch, dict) and watch.get("isWatched") is True:
        fields["watch"] = Watch(
            start=str(watch.get("start", "")),
            output_id=int(watch.get("outputId", NO_OUTPUT_ID)),
            end=str(watch.get("end", "")),
            full_content=watch.get("fullContent") is True,
        )
    fields["device"] = _json_devices(
        get("collectAllNpu", bool, True), get("collectCpu", bool, False), get("npuSlots", int, 0)
    )
    ours = values.get("msmemscope")
    if isinstance(ours, dict):
        try:
            fields.update(_parse_device(",".join(map(str, ours.get("device", ["auto"]))), []))
            fields.update(_parse_ring_size(str(ours.get("ring_mib", 16)), []))
            fields.update(_parse_ring_wait(str(ours.get("ring_wait_ms", 20)), []))
        except _Bad as error:
            raise InputError(f"config.json: msmemscope {error}") from None
        fields["traceback"] = ours.get("traceback") is True
    return Parsed(config=Config(**fields), warnings=tuple(warnings))  # type: ignore[arg-type]


def _json_devices(all_npu: object, cpu: object, slots: object) -> tuple[str, ...]:
    devices = ["npu"] if all_npu else [f"npu:{n}" for n in range(MAX_DEVICE + 1) if int(str(slots)) >> n & 1]
    if cpu:
        devices.append("cpu")
    return tuple(devices) or ("auto",)


def _bits(chosen: tuple[str, ...], words: tuple[str, ...]) -> int:
    return sum(1 << bit for bit, word in enumerate(words) if word in chosen)


def _words(bits: object, words: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(word for bit, word in enumerate(words) if int(str(bits)) >> bit & 1)


def write_config_json(config: Config, path: str) -> None:
    """Writes config.json (mode 0640 less the umask), whole or not at all. Raises OSError."""
    import json  # too dear for the import of this module

    temporary = f"{path}.{os.getpid()}~"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o640)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        json.dump(to_config_json(config), file, indent=4, ensure_ascii=False)
        file.write("\n")
    os.replace(temporary, path)


def read_config_json(path: str) -> Parsed:
    """Reads a config.json. Raises InputError with one line when it cannot be read or is not one."""
    import json

    try:
        with open(path, encoding="utf-8") as file:
            values = json.load(file)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from None
    except ValueError as error:
        raise InputError(f"{path} is not a config.json: {error}; delete it, the next run writes a new one") from None
    if not isinstance(values, dict):
        raise InputError(f"{path} is not a config.json: it holds no object; delete it, the next run writes a new one")
    return from_config_json(values)
