"""Upstream's msmemscope.init_framework_hooks: functions of frameworks that say whose memory is, or take snapshots."""

from __future__ import annotations

_manual = False


def init_framework_hooks(framework: str, version: str, component: str, hook_type: str) -> None:
    """Wraps a framework's functions, now or once it is imported: what they allocate gets an owner (`decompose`), or the
    allocator's counters are taken before and behind them (`snapshot`).

    framework, component: vllm worker (0.10 and later), vllm_ascend worker (11.0), verl worker (0.8 and later) and
    TaskRunner (0.7.0; 0.8 and later), mindspeed_llm training (0.12.1), deepspeed zero (0.12 and later), pytorch graphs
    (2.3 and later), fsdp1 and fsdp2 (2.6 and later); without a call, those of `decompose` are wrapped by
    `--analysis decompose`. A warning names a module that is imported and has none of what is wrapped there: the program
    runs another version of the framework. The first call with `decompose` leaves out the others: from then on the
    program says which.

    Raises TypeError for a value that is not text, ValueError that names what there is.
    """
    global _manual
    for value in (framework, version, component, hook_type):
        if not isinstance(value, str):
            raise TypeError(f"init_framework_hooks() takes texts; got {type(value).__name__}")
    from msmemscope.integrations.maps import DECOMPOSE, SNAPSHOT, find

    if hook_type not in (DECOMPOSE, SNAPSHOT):
        raise ValueError(f"unknown hook type {hook_type!r}; known: {DECOMPOSE}, {SNAPSHOT}")
    hooks = find(framework, version, component, hook_type)
    from msmemscope.collect.rank import hijack

    if hook_type == DECOMPOSE and not _manual:
        _manual = True
        hijack.release()
        watch_marks()
    words = ", ".join(map(repr, (framework, version, component, hook_type)))
    hijack.apply(hooks, f"init_framework_hooks({words})")


def cleanup_framework_hooks() -> None:
    """Takes back what is wrapped, by init_framework_hooks() or by itself."""
    from msmemscope.collect.rank import hijack

    hijack.release()


def watch_frameworks() -> None:
    """`--analysis decompose`: all functions that say owners, unless the program has said which."""
    if _manual:
        return
    from msmemscope.collect.rank import hijack
    from msmemscope.integrations.maps import automatic

    hijack.apply(automatic(_torch_version()))


def watch_marks() -> None:
    """Functions of frameworks that are moments of their own: between some the audit looks, others write snapshots."""
    from msmemscope.collect.rank import hijack
    from msmemscope.integrations.maps import ALWAYS

    hijack.apply(ALWAYS)


def _torch_version() -> str:
    import sys

    return str(getattr(sys.modules.get("torch"), "__version__", ""))
