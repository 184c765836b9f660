"""msMemScope, the distributed edition: what a training or inference job does with its memory, over all ranks.

The Python API of upstream. Inside a rank this package imports nothing but the standard library and _native, and
starts no thread; the analyses below are imported when they are first used. From the import of a framework on, blocks
are remembered, so that those from before start() are known. On an NPU that needs `import msmemscope` before torch_npu's
first allocation, and nothing in the environment.

Names of upstream that this version does nothing about exist all the same, so that its scripts run: each warns once.

>>> import msmemscope
>>> msmemscope.config(analysis="leaks")   # doctest: +SKIP
>>> msmemscope.start()                    # doctest: +SKIP
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from msmemscope import analyzer, describe, tracer, watcher
    from msmemscope.analyzer import analyze, check_inefficient, check_leaks, get_analyzer_config, list_analyzers
    from msmemscope.collect.session import Session
    from msmemscope.framework_hooks import cleanup_framework_hooks, init_framework_hooks
    from msmemscope.later import enable_npu_sanitizer
    from msmemscope.marks import mark
    from msmemscope.options.declared import Config
    from msmemscope.query.opened import OpenedRun, open_run
    from msmemscope.ranges import RecordFunction
    from msmemscope.snapshots import TakeSnapshot, take_snapshot

__all__ = [
    "OpenedRun",
    "RecordFunction",
    "TakeSnapshot",
    "analyze",
    "analyzer",
    "check_inefficient",
    "check_leaks",
    "cleanup_framework_hooks",
    "config",
    "describe",
    "enable_npu_sanitizer",
    "get_analyzer_config",
    "init_framework_hooks",
    "list_analyzers",
    "mark",
    "open_run",
    "start",
    "step",
    "stop",
    "take_snapshot",
    "tracer",
    "watcher",
]

# Where a name is that is not in this file; the modules among them stand for themselves.
_ELSEWHERE = {
    **dict.fromkeys(("analyzer", "describe", "tracer", "watcher"), ""),
    **dict.fromkeys(("analyze", "check_inefficient", "check_leaks"), "analyzer"),
    **dict.fromkeys(("get_analyzer_config", "list_analyzers"), "analyzer"),
    "RecordFunction": "ranges",
    "mark": "marks",
    **dict.fromkeys(("TakeSnapshot", "take_snapshot"), "snapshots"),
    **dict.fromkeys(("cleanup_framework_hooks", "init_framework_hooks"), "framework_hooks"),
    "enable_npu_sanitizer": "later",
    **dict.fromkeys(("OpenedRun", "open_run"), "query.opened"),
}

_config: Config | None = None


def config(**options: str | dict[str, object]) -> None:
    """Sets what is collected and where it goes; docs/api.md lists the keywords. Without any, the defaults.

    Every call starts from the defaults and switches to collecting from start() on. `format`, `output_path` and
    `watch` hold for the whole run: once it has begun they are kept, with a warning. `device`, `level`, `events` and
    `call_stack` hold from then on; what was recorded of a device that is left out is still recorded as freed.

    The options of an analysis are a mapping under its name: `config(leaks={"min_steps": 40})`. They are checked in a
    process of its own, which takes a second.

    Raises TypeError for a value that is not a text, ValueError for an unknown keyword or a wrong value.
    """
    global _config
    from msmemscope.collect.rank.bootstrap import own_imports

    with own_imports:
        from msmemscope.options.declared import settings_text
        from msmemscope.options.given import asks_analyses, lacking, parse_keywords

        parsed = parse_keywords(options, _config or _launched_config())
        chosen = parsed.config
        if asks_analyses(chosen):
            from msmemscope.collect.rank.asking import settled

            chosen = settled(chosen)
        from msmemscope.telling import tell
    for text in (*parsed.warnings, *parsed.missing, *lacking(chosen)):
        tell(f"Warning: {text}")
    _config = chosen
    if _is_attached():
        from msmemscope import _native

        _native.configure(settings_text(_config))
        from msmemscope.collect.rank.attach import watch_operators, watch_owners

        watch_operators(_config)
        watch_owners(_config)


def start() -> None:
    """Begins (or goes on with) recording in this process.

    Under `msmemscope program` this switches recording on in the running session. In a program that was started
    without it, the first process of the node starts agent and aggregator, the others join them.

    Blocks that are alive already are recorded with the times at which they were made, marked `shadow`, when
    msmemscope was imported before them or was preloaded. For torch_npu and MindSpore the import must come before their
    first allocation: they look only once whether somebody listens. After `source msmemscope --load-api-env` it may
    come anywhere.

    Raises MemscopeError when no session can be had.
    """
    from msmemscope.collect.rank.bootstrap import own_imports

    with own_imports:
        from msmemscope import _native
        from msmemscope.collect.rank.attach import attach, attached, identify, recording_begins

        attach(attached() or _session())
    _native.start()
    identify()
    recording_begins()
    if _config is not None and _config.traceback:
        from msmemscope.collect.rank import tracing

        tracing.start()


def stop() -> None:
    """Stops recording in this process. start() goes on with it."""
    from msmemscope import _native

    _native.stop()
    if _config is not None and _config.traceback:
        from msmemscope.collect.rank import tracing

        tracing.stop()


def step() -> None:
    """Says that a step ends here and the next begins; call it once per iteration. Does nothing while not recording.

    The n-th call ends step n, as in upstream: with a call at the end of each iteration, iteration n (counted from 1) is
    step n. What is recorded before the first call carries the number 0. In a program whose steps were counted by its
    optimizer until now, the numbers go on from the one reached.
    """
    if not _running() and not _joins_session():
        return
    from msmemscope import _native
    from msmemscope.collect.rank.attach import identify, step_ended
    from msmemscope.vocabulary import StepSource

    identify()
    _native.boundary(int(StepSource.API))
    step_ended()


def __getattr__(name: str) -> object:
    if name not in _ELSEWHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    module = import_module(f"msmemscope.{_ELSEWHERE[name] or name}")
    return getattr(module, name) if _ELSEWHERE[name] else module


def _session() -> Session:
    import os

    from msmemscope.collect.session import SESSION_VARIABLE, Session
    from msmemscope.options.given import parse_keywords

    if directory := os.environ.get(SESSION_VARIABLE):
        return Session.load(directory)
    from msmemscope.collect.rank.library import join_or_create

    return join_or_create(_config or parse_keywords({"analysis": "leaks"}).config)


def _launched_config() -> Config | None:
    """The options of the command line, when this process was started by it."""
    from msmemscope.collect.rank.attach import attached

    session = attached()
    return session.config.replaced(effective=True) if session is not None else None


def _is_attached() -> bool:
    """Whether this process records into a session, or has stopped to."""
    import sys

    attach = sys.modules.get("msmemscope.collect.rank.attach")
    return attach is not None and attach.attached() is not None


def _running() -> bool:
    import sys

    native = sys.modules.get("msmemscope._native")
    return native is not None and bool(native.stats()["recording"])


def joins_session() -> bool:
    """Attaches a process that was launched under watch and has imported no framework. Whether it then belongs to a
    session, recording or not."""
    import sys

    if _is_attached():
        return True
    if "msmemscope.collect.rank.attach" not in sys.modules:
        from msmemscope.collect.rank.bootstrap import watch_now

        watch_now()
    return _is_attached()


def joins_or_makes_session() -> None:
    """As start() does, without recording. Raises MemscopeError when no session can be had."""
    if joins_session():
        return
    from msmemscope.collect.rank.bootstrap import own_imports

    with own_imports:
        from msmemscope.collect.rank.attach import attach

        attach(_session())


def _joins_session() -> bool:
    """Attaches a process that was launched under watch and has imported no framework; whether it then records."""
    joins_session()
    return _running()


def _is_own_command() -> bool:
    """`msmemscope ...`, `python -m msmemscope...`: our own processes watch nobody."""
    import sys

    words = iter(sys.orig_argv[1:])
    for word in words:
        if word == "-m":
            return next(words, "").split(".")[0] == "msmemscope"
        if not word.startswith("-"):
            return word.rpartition("/")[2] == "msmemscope" or word.endswith("/msmemscope/isolated.py")
    return False


if not _is_own_command():
    from msmemscope.collect.rank import bootstrap as _bootstrap  # noqa: F401 - it waits for the import of a framework
