"""The options: one declaration each, from which the command line, the Python API, config.json and
docs/options.md are made.

In: nothing. Out: `Option`s; given.py makes a `Config` of what a user has written. Nothing here touches the file
system.

This is imported inside ranks, so it must cost next to nothing: no dataclasses, re, enum, typing or json.
"""

from __future__ import annotations

from msmemscope.errors import UsageError
from msmemscope.options import grammars
from msmemscope.options.facts import Facts
from msmemscope.options.settings import (
    DEFAULT_STACK_DEPTH,
    MAX_COMPONENT_BYTES,
    MAX_DEVICE,
    MAX_OOM_TOP,
    MAX_PATH_CHARS,
    MAX_SEPARATORS,
    MAX_STACK_DEPTH,
    MAX_STEPS,
    MAX_WATCH_NAME,
    NO_OUTPUT_ID,
    Config,
    Watch,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = [
    "BY_NAME",
    "OPTIONS",
    "Config",
    "Option",
    "OptionError",
    "Watch",
    "long_flag",
    "not_in_this_version",
    "settings_text",
]


class OptionError(UsageError, ValueError):
    """A wrong option; also a ValueError, which is what `msmemscope.config()` promises."""


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
    native: Mapping[str, Callable[[Config], int | str]] = {}  # setting of native/hook/settings.h → what it comes to
    later: Mapping[str, str] = {}  # value ("" = any) → what is missing in this version, a full sentence
    parse: Callable[[str, list[str]], dict[str, object]] = grammars.parse_nothing

    @property
    def old_keywords(self) -> tuple[str, ...]:
        """Deprecated keywords of `msmemscope.config()`."""
        return tuple(flag.lstrip("-").replace("-", "_") for flag in self.deprecated) if self.api else ()


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
        help="Leave out msmemscope's own warnings; same as --log-level error. The verdict is printed all the same.",
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
        native={"output_directory": lambda config: config.output_path},  # for the content of watched blocks
        field="output_path",
        api=True,
        once=True,
        parse=grammars.parse_output_path,
    ),
    Option(
        name="format",
        flags=("--format",),
        deprecated=("--data-format",),
        grammar="csv|db",
        default="csv",
        help="Format of the per-device files: CSV, or an SQLite database for MindStudio Insight.",
        cost="written after the program has ended; db takes longer than csv. Without this option, files of more "
        "than 1 GiB together are left out",
        field="format",
        api=True,
        once=True,
        parse=grammars.parse_format,
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
        native={"devices": lambda config: ",".join(config.device)},
        parse=grammars.parse_device,
    ),
    Option(
        name="events",
        flags=("--events",),
        grammar="alloc,free,launch,access,traceback|none",
        default="alloc,free,launch",
        help="Kinds of rows in the per-device files. What an analysis needs is recorded whatever stands here (alloc "
        "and free imply each other, access implies both), but only these are written. launch and access of torch's "
        "operators are recorded when this option, --level or an analysis asks for them, not by the default alone as "
        "upstream does: the default is to cost a step at most 5 %, which operators alone exceed, and they need a "
        "compiler once. msmemscope build-torch-ext builds what sees them, for torch from 2.3 on.",
        cost="launch and access multiply the number of events; measured in docs/overhead.md",
        field="dump_events",
        api=True,
        native={"sorts": lambda config: config.sorts},  # of level and analysis too
        parse=grammars.parse_events,
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
        parse=grammars.parse_level,
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
        native={
            "python_depth": lambda config: config.python_stack_depth if config.python_stack else 0,
            "native_depth": lambda config: config.c_stack_depth if config.c_stack else 0,
        },
        parse=grammars.parse_call_stack,
    ),
    Option(
        name="analysis",
        flags=("--analysis",),
        grammar="leaks,decompose,inefficient,oom[:K]|none",
        default="leaks",
        range=f"K, the newest and as many largest blocks shown, from 1 to {MAX_OOM_TOP}; 10 when it is left out",
        help="What is looked for, while the program runs and at its end, and thereby which events are recorded; an "
        "analysis that is none of these words by its name (peers, watch, or one of another package: "
        "msmemscope analyze --list). That memory ran out is told with any of them; oom looks "
        "for leaks too and adds the blocks that were alive to the per-device files, decompose says whose the bytes "
        "are (cluster/decompose.csv) and what each phase needs (cluster/phases.csv; phases alone says that, too) and "
        "adds the owners of blocks to the per-device files, peak says what was alive at each pool's peak "
        "(cluster/peak.csv), ledger what every byte of the cards and of host memory is (cluster/ledger.csv), "
        "inefficient what of the peaks nobody needed (cluster/inefficient.csv) and adds inefficient_type to the "
        "per-device files.",
        cost="none inside the program, beyond the events that an analysis adds",
        field="analysis",
        api=True,
        parse=grammars.parse_analysis,
    ),
    Option(
        name="steps",
        flags=("--steps",),
        grammar="N[,N...]",
        default="all steps",
        range=f"1 to {MAX_STEPS} different numbers from 1 on",
        help="Write only the rows of these steps. Leak analysis is off then, since it needs every step.",
        field="steps",
        parse=grammars.parse_steps,
    ),
    Option(
        name="watch",
        flags=("--watch",),
        grammar="START[:OUTPUT],END[,full-content]",
        default="off",
        range=f"names of at most {MAX_WATCH_NAME} characters; START may be empty, its comma may not be left out",
        help="Look at the output tensors of operator START (or at number OUTPUT of them) before and after every "
        "operator until END finishes: a checksum, or with full-content the bytes, in upstream's files; and the "
        "analysis watch says when one changed and no operator declared a write. msmemscope.watcher.watch() in the "
        "program watches other blocks. See docs/watch.md.",
        cost="copies every watched tensor to the host twice per operator, which waits for its stream",
        field="watch",
        api=True,
        once=True,
        native={
            "watch_start": lambda config: config.watch.start if config.watch else "",
            "watch_output": lambda config: config.watch.output_id if config.watch else NO_OUTPUT_ID,
            "watch_end": lambda config: config.watch.end if config.watch else "",
            "watch_content": lambda config: int(config.watch is not None and config.watch.full_content),
        },
        parse=grammars.parse_watch,
    ),
    Option(
        name="compare",
        flags=("--compare",),
        default="off",
        help="Compare the two files of --input-path launch by launch, as upstream does, instead of running a program: "
        "msmemscope_PID_TIME_ascend/compare/memory_compare_TIME.csv below the output directory. --level says which "
        "launches. msmemscope compare A B compares runs. See docs/compare.md.",
        field="compare",
        parse=grammars.parse_compare,
    ),
    Option(
        name="input_path",
        flags=("-i", "--input-path"),
        deprecated=("--input",),
        grammar="FILE,FILE",
        range="exactly two existing, readable csv or db files of upstream's, directories of them, or runs; "
        f"{MAX_PATH_CHARS} characters together",
        help="The two files to compare, the base first; only together with --compare.",
        field="input_paths",
        parse=grammars.parse_input_path,
    ),
    Option(
        name="collect_mode",
        flags=("--collect-mode",),
        grammar="immediate|deferred",
        default="immediate",
        help="When recording begins: with the program, or at msmemscope.start() in its code.",
        cost="deferred: address and size only until start()",
        field="collect_mode",
        native={"deferred": lambda config: int(config.collect_mode == "deferred")},
        parse=grammars.parse_collect_mode,
    ),
    Option(
        name="log_level",
        flags=("--log-level",),
        grammar="debug|info|warning|error",
        default="info",
        help="How much the tool says of itself on stderr. Errors, what is missing and the verdict are always said.",
        field="log_level",
        parse=grammars.parse_log_level,
    ),
    Option(
        name="operators",
        flags=("--operators",),
        grammar="outer|inner",
        default="outer",
        help="Which of torch's operators are recorded, where launches or accesses are. outer: those that a user would "
        "name, the outermost that a kernel serves; a graph that torch.compile made is one of them. inner: also those "
        "that they call. Who sees them without a compiler (a TorchDispatchMode) sees no inner ones.",
        cost="inner: another record pair for each of them",
        field="operators",
        api=True,
        ours=True,
        parse=grammars.parse_operators,
    ),
    Option(
        name="holders",
        flags=("--holders",),
        grammar="exit|step|none",
        default="exit",
        help="When each process looks up, among its own objects, who holds the tensors that leak. exit: when its "
        "interpreter ends, which is too late for local variables of a function that has returned. step: also at the "
        "end of step 13, and of the first step after a leak was found. none: never.",
        cost="at most 0.3 s of one processor each time, 0.2 s more where graphs of autograd are compared, and nothing "
        "where nothing leaks; a process that ends before the first verdict on it looks in any case, 30 to 150 ms. "
        "step: the program waits for it, once for each leak",
        field="holders",
        api=True,
        once=True,
        ours=True,
        parse=grammars.parse_holders,
    ),
    Option(
        name="ring_size",
        flags=("--ring-size",),
        grammar="MIB",
        default="16",
        range="a power of two from 1 to 1024",
        help="Shared memory for each process's events until they are stored, at most.",
        cost="of /dev/shm what is under way: 68 KiB for an idle process, up to this for one that is ahead of the agent "
        "(on kernels before 5.14 all of it)",
        field="ring_mib",
        ours=True,
        native={"ring_mib": lambda config: config.ring_mib},
        parse=grammars.parse_ring_size,
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
        native={"ring_wait_ms": lambda config: config.ring_wait_ms},
        parse=grammars.parse_ring_wait,
    ),
)

BY_NAME = {option.name: option for option in OPTIONS}


def settings_text(config: Config) -> str:
    """The options as the native side takes them: `memscope_configure` (native/hook/settings.h)."""
    return ";".join(f"{name}={value(config)}" for option in OPTIONS for name, value in option.native.items())


def not_in_this_version(option: Option) -> str:
    """A sentence for the help page; the notices of `later` say more, and docs/options.md too."""
    words = ", ".join(word for word in option.later if word)
    return f" Not in this version{f': {words}' if words else ''}." if option.later else ""


def long_flag(option: Option) -> str:
    """The flag by which messages and documents call an option."""
    return next(flag for flag in option.flags if flag.startswith("--"))
