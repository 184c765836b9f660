"""What a user has given of the options: texts made into a `Config`.

In: texts as a user writes them, on the command line or in `msmemscope.config(...)`. Out: a `Config` and what must be
said about it. Nothing here touches the file system.

This is imported inside ranks, so it must cost next to nothing: no dataclasses, re, enum, typing or json.
"""

from __future__ import annotations

from msmemscope.options import grammars
from msmemscope.options.declared import BY_NAME, OPTIONS, Config, Option, OptionError, long_flag
from msmemscope.options.facts import Facts
from msmemscope.options.settings import ANALYSES, ANALYSIS_NEEDS, DEFAULT_OUTPUT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


class Parsed(Facts):
    """A Config and what must be said about it: `warnings` (deprecations, contradictions) and `missing`
    (what was asked for and is not in this version)."""

    config: Config
    warnings: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()


def parse_command_line(
    texts: Mapping[str, str],
    *,
    switches: Iterable[str] = (),
    old_flags: Iterable[str] = (),
    analysis_options: Iterable[str] = (),
) -> Parsed:
    """Option name → text as written, the names of the switches given, the deprecated flags met, and what options of
    analyses were given ("leaks.min_steps=40"), as a Config that is effective. Raises OptionError with one line that
    names the flag."""
    given = set(switches)
    warnings: list[str] = []
    for flag in old_flags:
        warnings.append(f"{flag} is deprecated: use {long_flag(_option_of_flag(flag))}")
    fields: dict[str, object] = {"output_path": grammars.absolute(DEFAULT_OUTPUT), "effective": True}
    fields["analysis_options"] = tuple(sorted(analysis_options))
    if "quiet" in given:
        fields["log_level"] = "error"
    if "verbose" in given:
        fields["log_level"] = "debug"
    if "compare" in given:
        fields["compare"] = True
    for name, text in texts.items():
        fields.update(_parsed(BY_NAME[name], long_flag(BY_NAME[name]), text, warnings))
    config = Config(**fields, operators_given=_asks_for_operators(texts))  # type: ignore[arg-type]
    if config.traceback:
        warnings.append("--events traceback works only through msmemscope.config(events=...) and is ignored here")
        config = config.replaced(traceback=False)
    if config.compare and not config.input_paths:
        raise OptionError("--compare needs two files: add --input-path FILE,FILE")
    if config.input_paths and not config.compare:
        raise OptionError("--input-path is only for comparing two files: add --compare")
    if config.steps and config.replaced(steps=()).looks_for_leaks:
        warnings.append("--steps switches the leak analysis off: it needs every step")
    missing = [note for name in texts for note in _missing(BY_NAME[name], config, long_flag(BY_NAME[name]))]
    return Parsed(config=config, warnings=tuple(warnings), missing=tuple(missing))


def parse_keywords(keywords: Mapping[str, object], current: Config | None = None) -> Parsed:
    """The keywords of `msmemscope.config()` as a Config. Like upstream, every call starts from the defaults and
    collects from start() on; format, output_path and watch keep the values of `current` once that is effective.

    Raises TypeError for a value that is not text, OptionError (a ValueError) for anything else that is wrong.
    """
    locked = current is not None and current.effective
    names = {option.name: option for option in OPTIONS if option.api}
    for option in OPTIONS:
        names.update(dict.fromkeys(option.old_keywords, option))
    warnings: list[str] = []
    seen: set[str] = set()
    fields: dict[str, object] = {"output_path": grammars.absolute(DEFAULT_OUTPUT)}
    if current is not None:  # what upstream has no word for cannot be said here, and stays
        fields.update({option.field: getattr(current, option.field) for option in OPTIONS if option.ours})
    if current is not None and locked:
        fields.update({option.field: getattr(current, option.field) for option in OPTIONS if option.once})
        fields["format_given"] = current.format_given
    of_analyses: list[str] = []
    for keyword, value in keywords.items():
        found = names.get(keyword)
        if found is None and isinstance(value, dict):
            of_analyses += [f"{keyword}.{name}={text}" for name, text in value.items()]
            continue
        if found is None:
            allowed = ", ".join(option.name for option in OPTIONS if option.api)
            raise OptionError(
                f"msmemscope.config() has no keyword {grammars.shown(keyword)}: it takes {allowed}, and the options of "
                "an analysis as leaks={...}"
            )
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
    fields.update(collect_mode="deferred", effective=True, operators_given=_asks_for_operators(seen))
    fields["analysis_options"] = tuple(sorted(of_analyses))
    config = Config(**fields)  # type: ignore[arg-type]
    missing = [note for name in sorted(seen) for note in _missing(BY_NAME[name], config, name)]
    return Parsed(config=config, warnings=tuple(warnings), missing=tuple(missing))


def asks_analyses(config: Config) -> bool:
    """Whether analysis/asked.py must be asked what a Config comes to."""
    return bool(config.analysis_options) or not {*ANALYSES}.issuperset(config.analysis)


def lacking(config: Config) -> list[str]:
    """What an analysis needs and other options leave out."""
    if "op" in config.level:
        return []
    needing = [name for name in config.analysis if "launch" in ANALYSIS_NEEDS.get(name, config.needed_events)]
    return [f"--analysis {name} needs launches of operators, which --level leaves out: add op" for name in needing]


def _parsed(option: Option, label: str, text: str, warnings: list[str]) -> dict[str, object]:
    notes: list[str] = []
    try:
        fields = option.parse(text, notes)
    except grammars.MalformedError as error:
        raise OptionError(f"{label} {error}") from None
    warnings += notes
    return fields


def _missing(option: Option, config: Config, label: str) -> list[str]:
    """What `option`, given explicitly, asks for that this version does not have."""
    value = getattr(config, option.field) if option.field else ()
    words: set[str] = set()
    if isinstance(value, tuple):
        words = {str(item).partition(":")[0] for item in value}
    return [
        f"{label} {word}: {note}" if word else f"{label}: {note}"
        for word, note in option.later.items()
        if (word in words if word else bool(value))
    ]


def _asks_for_operators(given: Iterable[str]) -> bool:
    """Whether one of the options `given`, by name, says what is recorded of operators, be it the default."""
    return not {"events", "level"}.isdisjoint(given)


def _option_of_flag(flag: str) -> Option:
    return next(option for option in OPTIONS if flag in option.flags + option.deprecated)
