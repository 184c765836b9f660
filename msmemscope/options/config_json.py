"""config.json with upstream's keys: the options of a run, for upstream's tools and users.

In: a Config, or a file written by us or by upstream. Out: the other of the two. Not needed inside a rank.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import cast

from msmemscope.errors import InputError
from msmemscope.options import grammars
from msmemscope.options.declared import OPTIONS
from msmemscope.options.given import Parsed
from msmemscope.options.settings import (
    ANALYSES,
    COLLECT_MODES,
    DEFAULT_OUTPUT,
    DEFAULT_STACK_DEPTH,
    EVENTS,
    FORMATS,
    LEVELS,
    LOG_LEVELS,
    MAX_DEVICE,
    MAX_OOM_TOP,
    MAX_STACK_DEPTH,
    MAX_STEP,
    MAX_STEPS,
    NO_OUTPUT_ID,
    Config,
    Watch,
)

# Fields of Config that upstream's keys say; all others go below the key `msmemscope` as they are.
_UPSTREAMS = {
    "level", "dump_events", "python_stack", "python_stack_depth", "c_stack", "c_stack_depth", "analysis", "oom_top",
    "steps", "watch", "compare", "input_paths", "output_path", "format", "log_level", "collect_mode", "effective",
}  # fmt: skip


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
            **{name: value for name, value in config.as_dict().items() if name not in _UPSTREAMS},
            "analysis": [name for name in config.analysis if name not in ANALYSES],
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
        fields.update(grammars.parse_output_path(str(get("outputDir", str, DEFAULT_OUTPUT)), []))
    except grammars.MalformedError as error:
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
            fields.update(_ours(ours))
            others = Config.from_dict({"analysis": ours.get("analysis", [])}).analysis
        except (ValueError, grammars.MalformedError) as error:
            raise InputError(f"config.json: msmemscope: {error}") from None
        fields["analysis"] = (*cast(tuple[str, ...], fields["analysis"]), *others)
    return Parsed(config=Config(**fields), warnings=tuple(warnings))  # type: ignore[arg-type]


def _ours(values: Mapping[str, object]) -> dict[str, object]:
    """What of a Config upstream's keys have no word for. ValueError and MalformedError for what no option takes."""
    names = [name for name in Config.__annotations__ if name in values and name not in _UPSTREAMS]
    config = Config.from_dict({name: values[name] for name in names})
    for option in OPTIONS:
        if option.field in names and option.grammar:
            value = getattr(config, option.field)
            option.parse(",".join(map(str, value)) if isinstance(value, tuple) else str(value), [])
    return {name: getattr(config, name) for name in names}


def _json_devices(all_npu: object, cpu: object, slots: object) -> tuple[str, ...]:
    devices = ["npu"] if all_npu else [f"npu:{n}" for n in range(MAX_DEVICE + 1) if int(str(slots)) >> n & 1]
    if cpu:
        devices.append("cpu")
    return tuple(devices) or ("auto",)


def _bits(chosen: tuple[str, ...], words: tuple[str, ...]) -> int:
    return sum(1 << bit for bit, word in enumerate(words) if word in chosen)


def _words(bits: object, words: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(word for bit, word in enumerate(words) if int(str(bits)) >> bit & 1)


def config_json_text(config: Config, **ours: str) -> str:
    """What a config.json holds; `ours` goes below the key `msmemscope`."""
    values = to_config_json(config)
    values["msmemscope"] = {**cast(dict[str, object], values["msmemscope"]), **ours}
    return json.dumps(values, indent=4, ensure_ascii=False) + "\n"


def write_config_json(text: str, path: str) -> None:
    """Writes `text` as config.json (mode 0640 less the umask), whole or not at all. Raises OSError."""
    temporary = f"{path}.{os.getpid()}~"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o640)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(temporary, path)


def read_config_json(path: str) -> Parsed:
    """Reads a config.json. Raises InputError with one line when it cannot be read or is not one."""
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
