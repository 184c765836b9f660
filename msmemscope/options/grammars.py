"""The grammars of the options' values: text → fields of a Config.

In: a text as written, and a list for notices. Out: a dict of fields; MalformedError with "takes ...; got ..." for any
other text. Whoever calls puts the option's name in front.
"""

from __future__ import annotations

import os

from msmemscope.options.settings import (
    ANALYSES,
    COLLECT_MODES,
    DEFAULT_STACK_DEPTH,
    ENTRY_POINTS,
    EVENTS,
    FORMATS,
    HOLDERS,
    LEVELS,
    LOG_LEVELS,
    MAX_COMPONENT_BYTES,
    MAX_DEVICE,
    MAX_OOM_TOP,
    MAX_PATH_CHARS,
    MAX_SEPARATORS,
    MAX_STACK_DEPTH,
    MAX_STEP,
    MAX_STEPS,
    MAX_WATCH_NAME,
    NO_OUTPUT_ID,
    OPERATORS,
    OWN_ANALYSES,
    Watch,
)


class MalformedError(Exception):
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


def absolute(path: str) -> str:
    """`path` as it can be found from everywhere; as it is where the current directory has been deleted: whoever
    writes there finds that it cannot."""
    try:
        return os.path.abspath(path)
    except FileNotFoundError:
        return path


def shown(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:57] + "...")


def _choices(text: str, allowed: tuple[str, ...], takes: str) -> list[str]:
    """The items of a list of fixed words, each once, in the order of `allowed`."""
    items = _items(text)
    for item in items:
        if item not in allowed:
            raise MalformedError(f"takes {takes}; got {shown(item or text)}")
    return [word for word in allowed if word in items]


def parse_steps(text: str, notes: list[str]) -> dict[str, object]:
    steps: list[int] = []
    for item in _items(text):
        step = _number(item, 1, MAX_STEP)
        if step is None:
            raise MalformedError(f"takes step numbers from 1 on, separated by commas; got {shown(item or text)}")
        if step not in steps:
            steps.append(step)
    if len(steps) > MAX_STEPS:
        raise MalformedError(f"takes at most {MAX_STEPS} step numbers; got {len(steps)}")
    return {"steps": tuple(steps)}


def parse_call_stack(text: str, notes: list[str]) -> dict[str, object]:
    fields: dict[str, object] = {"python_stack": False, "c_stack": False}
    items = _items(text)
    if items in (["none"], [""]):
        return fields
    for item in items:
        name, colon, depth_text = item.partition(":")
        depth = _number(depth_text, 0, MAX_STACK_DEPTH) if colon else DEFAULT_STACK_DEPTH
        if name not in ("python", "c") or depth is None:
            takes = f"takes python[:depth] and c[:depth] with a depth of 0 to {MAX_STACK_DEPTH}, or none"
            raise MalformedError(f"{takes}; got {shown(item or text)}")
        if fields[f"{name}_stack"]:
            raise MalformedError(f"names {name} twice")
        fields[f"{name}_stack"] = True
        fields[f"{name}_stack_depth"] = depth
    return fields


def parse_analysis(text: str, notes: list[str]) -> dict[str, object]:
    if not text.strip():  # upstream's documents switch an item off by an empty text
        return {"analysis": ()}
    fields: dict[str, object] = {}
    words: list[str] = []
    for item in _items(text):
        name, colon, top_text = item.partition(":")
        if name == "oom" and colon:
            top = _number(top_text, 1, MAX_OOM_TOP)
            if top is None:
                raise MalformedError(f"takes oom:K with K from 1 to {MAX_OOM_TOP}; got {shown(item)}")
            fields["oom_top"] = top
            words.append("oom")
        else:
            words.append(item)
    others = _other_analyses() if not {*ANALYSES, "none"}.issuperset(words) else ()
    chosen = _choices(
        ",".join(words),
        (*ANALYSES, *others, "none"),
        f"{', '.join((*ANALYSES[:-1], *others))}, oom or oom:K, separated by commas, or none",
    )
    fields["analysis"] = _unless_none(chosen, "analysis", notes)
    return fields


def _other_analyses() -> tuple[str, ...]:
    """Names of our own analyses that are no words of upstream, and of those of other packages. None is imported."""
    from importlib.metadata import entry_points  # here: the words of upstream need no look

    packaged = {entry.name for entry in entry_points(group=ENTRY_POINTS)}
    return tuple(sorted({*OWN_ANALYSES, *packaged} - set(ANALYSES)))


def parse_events(text: str, notes: list[str]) -> dict[str, object]:
    if not text.strip():
        return {"dump_events": (), "traceback": False}
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


def parse_level(text: str, notes: list[str]) -> dict[str, object]:
    if not text.strip():
        return {"level": ()}
    items = _items(text)
    for old, new in (("0", "op"), ("1", "kernel")):
        if old in items:
            notes.append(f"level {old} is deprecated: write {new}")
            items = [new if item == old else item for item in items]
    return {"level": tuple(_choices(",".join(items), LEVELS, "op and kernel, separated by a comma"))}


def parse_device(text: str, notes: list[str]) -> dict[str, object]:
    takes = f"takes auto, cpu, npu, npu:N, cuda, cuda:N with N from 0 to {MAX_DEVICE}, separated by commas"
    chosen: list[str] = []
    for item in _items(text):
        kind, colon, index = item.partition(":")
        valid = kind in ("npu", "cuda") if colon else item in ("auto", "cpu", "npu", "cuda")
        if not valid or (colon and _number(index, 0, MAX_DEVICE) is None):
            raise MalformedError(f"{takes}; got {shown(item or text)}")
        if item not in chosen:
            chosen.append(item)
    # The whole kind says more than one card of it.
    whole = {"npu", "cuda"} if "auto" in chosen else {"npu", "cuda"} & set(chosen)
    chosen = [item for item in chosen if not (":" in item and item.partition(":")[0] in whole)]
    return {"device": tuple(chosen)}


def parse_watch(text: str, notes: list[str]) -> dict[str, object]:
    takes = "takes start[:output],end[,full-content]"
    parts = _items(text)
    if not 2 <= len(parts) <= 3:
        raise MalformedError(f"{takes}; got {shown(text)}")
    start, colon, output = parts[0].rpartition(":")
    output_id = NO_OUTPUT_ID
    if colon:
        number = _number(output, 0, NO_OUTPUT_ID - 1)
        if number is None:
            raise MalformedError(f"{takes} with a number as output; got {shown(output)}")
        output_id = number
    else:
        start = parts[0]
    if not parts[1]:
        raise MalformedError(f"{takes}; the end is missing in {shown(text)}")
    if len(parts) == 3 and parts[2] != "full-content":
        raise MalformedError(f"{takes}; got {shown(parts[2])} as third part")
    for name in (start, parts[1]):
        if len(name) > MAX_WATCH_NAME:
            raise MalformedError(f"takes names of at most {MAX_WATCH_NAME} characters; got {len(name)}")
        if len(name.encode()) > MAX_WATCH_NAME or ";" in name:
            raise MalformedError(f"takes names of operators; got {shown(name)}")
    return {"watch": Watch(start=start, output_id=output_id, end=parts[1], full_content=len(parts) == 3)}


def parse_output_path(text: str, notes: list[str]) -> dict[str, object]:
    if not text.strip():
        raise MalformedError("takes a directory; got a blank")
    if text[0] in "=+-@":
        raise MalformedError(f"takes a directory whose name does not begin with {text[0]}: write ./{text[:60]}")
    for char in text:
        plain = (char.isascii() and char.isalnum()) or char in "./_-~" or char.isspace()
        if not plain and not "\u4e00" <= char <= "\u9fa5":
            raise MalformedError(f"takes letters, digits, . / _ - ~ and spaces; got {char!r} in {shown(text)}")
    path = absolute(os.path.expanduser(text))
    if len(text) > MAX_PATH_CHARS or len(path) > MAX_PATH_CHARS:
        raise MalformedError(f"takes a path of at most {MAX_PATH_CHARS} characters; got {max(len(text), len(path))}")
    if any(len(os.fsencode(part)) > MAX_COMPONENT_BYTES for part in path.split("/")):
        raise MalformedError(f"takes names of at most {MAX_COMPONENT_BYTES} bytes between the slashes of {shown(text)}")
    if path.count("/") > MAX_SEPARATORS:
        raise MalformedError(f"takes at most {MAX_SEPARATORS} nested directories; got {path.count('/')}")
    return {"output_path": path}


def parse_input_path(text: str, notes: list[str]) -> dict[str, object]:
    if len(text) > MAX_PATH_CHARS:
        raise MalformedError(f"takes paths of at most {MAX_PATH_CHARS} characters together; got {len(text)}")
    paths = _items(text)
    if len(paths) != 2 or not all(paths):
        raise MalformedError(f"takes exactly two files, separated by a comma; got {shown(text)}")
    return {"input_paths": tuple(os.path.abspath(path) for path in paths)}


def parse_format(text: str, notes: list[str]) -> dict[str, object]:
    if text not in FORMATS:
        raise MalformedError(f"takes csv or db; got {shown(text)}")
    return {"format": text, "format_given": True}


def parse_log_level(text: str, notes: list[str]) -> dict[str, object]:
    if text == "warn":
        notes.append("log level warn is deprecated: write warning")
        text = "warning"
    if text not in LOG_LEVELS:
        raise MalformedError(f"takes debug, info, warning or error; got {shown(text)}")
    return {"log_level": text}


def parse_collect_mode(text: str, notes: list[str]) -> dict[str, object]:
    if text not in COLLECT_MODES:
        raise MalformedError(f"takes immediate or deferred; got {shown(text)}")
    return {"collect_mode": text}


def parse_operators(text: str, notes: list[str]) -> dict[str, object]:
    if text not in OPERATORS:
        raise MalformedError(f"takes outer or inner; got {shown(text)}")
    return {"operators": text}


def parse_holders(text: str, notes: list[str]) -> dict[str, object]:
    if text not in HOLDERS:
        raise MalformedError(f"takes exit, step or none; got {shown(text)}")
    return {"holders": text}


def parse_ring_size(text: str, notes: list[str]) -> dict[str, object]:
    value = _number(text, 1, 1024)
    if value is None or value & (value - 1):
        raise MalformedError(f"takes a power of two from 1 to 1024 (MiB); got {shown(text)}")
    return {"ring_mib": value}


def parse_ring_wait(text: str, notes: list[str]) -> dict[str, object]:
    value = _number(text, 0, 1000)
    if value is None:
        raise MalformedError(f"takes 0 to 1000 (milliseconds); got {shown(text)}")
    return {"ring_wait_ms": value}


def parse_nothing(text: str, notes: list[str]) -> dict[str, object]:
    return {}


def parse_compare(text: str, notes: list[str]) -> dict[str, object]:
    return {"compare": True}
