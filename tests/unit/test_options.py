"""Every option's values, both ends of every range, the coupling rules, and what is said about what.

The truth is upstream's table of options, shared by the command line and `msmemscope.config()`.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import msmemscope
from msmemscope import _native
from msmemscope.errors import InputError, UsageError
from msmemscope.options.config_json import (
    config_json_text,
    from_config_json,
    read_config_json,
    to_config_json,
    write_config_json,
)
from msmemscope.options.declared import (
    BY_NAME,
    OPTIONS,
    OptionError,
    settings_text,
)
from msmemscope.options.facts import Facts
from msmemscope.options.given import parse_command_line, parse_keywords
from msmemscope.options.settings import NO_OUTPUT_ID, Config, Watch

LONG = "x" * 254


def value(name: str, text: str) -> object:
    return getattr(parse_command_line({name: text}).config, BY_NAME[name].field)


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("steps", "1", (1,)),
        ("steps", "4294967295", (4294967295,)),
        ("steps", "1,2,3,4,5", (1, 2, 3, 4, 5)),
        ("steps", "3，1,3", (3, 1)),
        ("device", "auto", ("auto",)),
        ("device", "cpu,npu:0,npu:31", ("cpu", "npu:0", "npu:31")),
        ("device", "npu:3，npu，cpu", ("npu", "cpu")),
        ("device", "cuda:0,npu,cuda:31", ("cuda:0", "npu", "cuda:31")),
        ("device", "auto,cuda:1,cpu", ("auto", "cpu")),
        ("events", "free", ("free",)),
        ("events", "access,alloc", ("alloc", "access")),
        ("events", "none", ()),
        ("events", "alloc,none", ()),
        ("events", "", ()),
        ("level", "kernel，op", ("op", "kernel")),
        ("level", "0,1", ("op", "kernel")),
        ("level", "", ()),
        ("analysis", "inefficient,leaks", ("leaks", "inefficient")),
        ("analysis", "none", ()),
        ("analysis", "oom:3,none", ()),
        ("analysis", "", ()),
        ("analysis", " ", ()),
        ("call_stack", "", False),
        ("format", "csv", "csv"),
        ("format", "db", "db"),
        ("log_level", "warn", "warning"),
        ("collect_mode", "deferred", "deferred"),
        ("watch", "a,b", Watch(start="a", end="b")),
        ("watch", ",b", Watch(start="", end="b")),
        ("watch", "a:0,b，full-content", Watch(start="a", output_id=0, end="b", full_content=True)),
        ("watch", "a:b:4294967294,c", Watch(start="a:b", output_id=NO_OUTPUT_ID - 1, end="c")),
        ("watch", f"{LONG},{LONG}", Watch(start=LONG, end=LONG)),
        ("ring_size", "1", 1),
        ("ring_size", "1024", 1024),
        ("ring_wait", "0", 0),
        ("ring_wait", "1000", 1000),
        ("holders", "none", "none"),
        ("operators", "inner", "inner"),
    ],
)
def test_a_value_within_its_range_is_taken(name: str, text: str, expected: object) -> None:
    assert value(name, text) == expected


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("steps", "0"),
        ("steps", "-1"),
        ("steps", "01"),
        ("steps", "+1"),
        ("steps", "1.5"),
        ("steps", ""),
        ("steps", "1,"),
        ("steps", "1,2,3,4,5,6"),
        ("steps", "4294967296"),
        ("steps", "٣"),  # a digit, but not ASCII
        ("call_stack", "python:1001"),
        ("call_stack", "c:"),
        ("call_stack", "c:-1"),
        ("call_stack", "rust"),
        ("call_stack", "python,python:3"),
        ("call_stack", "python,none"),
        ("analysis", "oom:0"),
        ("analysis", "oom:1001"),
        ("analysis", "oom:"),
        ("analysis", "oomph"),  # upstream takes it; a fault there
        ("analysis", "leak"),
        ("analysis", ",leaks"),
        ("events", "malloc"),
        ("events", ","),
        ("level", "2"),
        ("level", "op,,kernel"),
        ("device", ""),
        ("device", "npu:32"),
        ("device", "npu:01"),
        ("device", "npu:"),
        ("device", "cuda:32"),
        ("device", "cpu:0"),
        ("device", "auto:1"),
        ("device", "gpu"),
        ("watch", "a"),
        ("watch", "a,"),
        ("watch", "a:01,b"),
        ("watch", "a:4294967295,b"),
        ("watch", "a:x,b"),
        ("watch", "a,b,bytes"),
        ("watch", "a,b,full-content,c"),
        ("watch", "a;sorts=7,b"),
        ("watch", f"{LONG}x,b"),
        ("watch", f"a,{LONG}x"),
        ("format", "json"),
        ("format", "csv,db"),
        ("log_level", "trace"),
        ("collect_mode", "later"),
        ("input_path", "/a"),
        ("input_path", "/a,/b,/c"),
        ("input_path", "/a,"),
        ("input_path", "/" + "a" * 4096 + ",/b"),
        ("output_path", ""),
        ("output_path", "  "),
        ("output_path", "-x"),
        ("output_path", "=x"),
        ("output_path", "a;b"),
        ("output_path", "a\x00b"),
        ("output_path", "/" + "a" * 4096),
        ("output_path", "/" + "a" * 256),
        ("output_path", "/a" * 33),
        ("ring_size", "0"),
        ("ring_size", "3"),
        ("ring_size", "2048"),
        ("ring_wait", "1001"),
        ("holders", "always"),
        ("operators", "all"),
    ],
)
def test_any_other_value_is_one_line_that_names_the_option_and_what_it_takes(name: str, text: str) -> None:
    with pytest.raises(OptionError) as caught:
        parse_command_line({name: text})
    message = str(caught.value)
    assert message.startswith(f"--{name.replace('_', '-')} ")
    assert "takes" in message or "twice" in message or "missing" in message
    assert "\n" not in message
    assert len(message) < 300
    assert caught.value.exit_status == 2


@pytest.mark.parametrize(
    ("text", "python", "c"),
    [
        ("python", (True, 50), (False, 50)),
        ("c", (False, 32), (True, 50)),
        ("c:0,python:1000", (True, 1000), (True, 0)),
        ("python:7，c", (True, 7), (True, 50)),
        ("none", (False, 32), (False, 50)),
    ],
)
def test_call_stacks(text: str, python: tuple[bool, int], c: tuple[bool, int]) -> None:
    config = parse_command_line({"call_stack": text}).config
    assert (config.python_stack, config.python_stack_depth) == python
    assert (config.c_stack, config.c_stack_depth) == c


def test_defaults() -> None:
    config = parse_command_line({}).config
    assert (config.python_stack, config.python_stack_depth, config.c_stack) == (True, 32, False)
    assert (config.device, config.level, config.dump_events) == (("auto",), ("op",), ("alloc", "free", "launch"))
    assert (config.analysis, config.oom_top, config.steps, config.watch) == (("leaks",), 10, (), None)
    assert (config.format, config.log_level, config.collect_mode) == ("csv", "info", "immediate")
    assert config.output_path == str(Path("memscopeDumpResults").resolve())
    assert config.effective


@pytest.mark.parametrize(("text", "top"), [("oom", 10), ("oom:1", 1), ("oom:1000,leaks", 1000)])
def test_the_number_of_largest_blocks(text: str, top: int) -> None:
    config = parse_command_line({"analysis": text}).config
    assert "oom" in config.analysis
    assert config.oom_top == top


@pytest.mark.parametrize(
    ("events", "analysis", "collected"),
    [
        ("alloc", "none", ("alloc", "free")),
        ("free", "none", ("alloc", "free")),
        ("access", "none", ("alloc", "free", "access")),
        ("launch", "none", ("launch",)),
        ("none", "none", ()),
        ("none", "leaks", ("alloc", "free")),
        ("none", "oom", ("alloc", "free")),
        ("launch", "decompose", ("alloc", "free", "launch", "access")),
        ("none", "decompose", ("alloc", "free", "access")),
        ("alloc,free", "inefficient", ("alloc", "free", "launch", "access")),
    ],
)
def test_an_analysis_enlarges_what_is_recorded_but_not_what_is_written(
    events: str, analysis: str, collected: tuple[str, ...]
) -> None:
    config = parse_command_line({"events": events, "analysis": analysis}).config
    assert config.collect_events == collected
    written = () if events == "none" else tuple(events.split(","))
    assert config.dump_events == written


def test_selected_steps_switch_the_leak_analysis_off_and_say_so() -> None:
    parsed = parse_command_line({"steps": "3", "analysis": "leaks,oom,inefficient"})
    assert parsed.config.active_analysis == ("inefficient",)
    assert any("leak analysis" in warning for warning in parsed.warnings)


@pytest.mark.parametrize(
    ("level", "events", "sorts"),
    [
        ("op", "launch", 1),
        ("kernel", "launch", 2),
        ("op,kernel", "launch", 3),
        ("op,kernel", "alloc", 0),
        ("", "launch", 0),
    ],
)
def test_launches_need_their_level_and_the_event(level: str, events: str, sorts: int) -> None:
    assert parse_command_line({"level": level, "events": events}).config.sorts & 3 == sorts


def test_log_level_beats_verbose_beats_quiet() -> None:
    def level(switches: tuple[str, ...], **texts: str) -> str:
        return parse_command_line(texts, switches=switches).config.log_level

    assert level(("quiet",)) == "error"
    assert level(("verbose", "quiet")) == "debug"
    assert level(("quiet", "verbose"), log_level="warning") == "warning"


@pytest.mark.parametrize(
    ("texts", "old_flags", "said"),
    [
        ({"output_path": "x"}, ("--output",), ("--output", "--output-path")),
        ({"format": "db"}, ("--data-format",), ("--data-format", "--format")),
        ({"level": "1"}, (), ("level 1", "kernel")),
        ({"log_level": "warn"}, (), ("warn", "warning")),
    ],
)
def test_deprecated_names_are_told_with_their_new_ones(
    texts: dict[str, str], old_flags: tuple[str, ...], said: tuple[str, str]
) -> None:
    warnings = parse_command_line(texts, old_flags=old_flags).warnings
    assert any("deprecated" in warning and all(word in warning for word in said) for warning in warnings)


@pytest.mark.parametrize("name", ["events", "analysis"])
def test_none_beside_others_clears_them_with_a_warning(name: str) -> None:
    other = {"events": "alloc", "analysis": "leaks"}[name]
    assert any("none" in warning for warning in parse_command_line({name: f"{other},none"}).warnings)
    assert parse_command_line({name: "none"}).warnings == ()


def test_the_two_options_of_a_comparison_need_each_other() -> None:
    with pytest.raises(OptionError, match="--input-path"):
        parse_command_line({}, switches=("compare",))
    with pytest.raises(OptionError, match="--compare"):
        parse_command_line({"input_path": "/a,/b"})
    assert parse_command_line({"input_path": "/a，/b"}, switches=("compare",)).config.input_paths == ("/a", "/b")


@pytest.mark.parametrize(("name", "text"), [("analysis", "oom:3"), ("device", "npu:1"), ("level", "kernel")])
def test_what_an_npu_needs_is_there(name: str, text: str) -> None:
    assert parse_command_line({name: text}).missing == ()


def test_operators_of_torch_are_observed_when_something_asks_for_them() -> None:
    def observed(**texts: str) -> bool:
        parsed = parse_command_line(texts)
        assert not any("operator" in text for text in parsed.missing)
        stored = from_config_json(to_config_json(parsed.config)).config
        assert stored.observes_operators == parsed.config.observes_operators
        return parsed.config.observes_operators

    assert not observed()
    assert observed(events="alloc,free,launch")
    assert observed(events="access")
    assert observed(level="op")
    assert observed(analysis="decompose")
    assert not observed(events="alloc")
    assert not observed(level="kernel", events="access,launch")
    assert parse_keywords({"events": "launch"}).config.observes_operators
    assert not parse_keywords({}).config.observes_operators


def test_a_path_of_the_longest_names_and_cjk_ideographs_is_taken() -> None:
    longest = "/" + "a" * 255
    assert value("output_path", longest) == longest
    assert value("output_path", "/a" * 32) == "/a" * 32
    assert value("output_path", "/tmp/内存 ~x_1-2.d") == "/tmp/内存 ~x_1-2.d"


# --- msmemscope.config() -----------------------------------------------------------------------------------------


def test_keywords_start_from_the_defaults_and_defer_collection() -> None:
    before = Config(device=("cpu",), analysis=(), effective=False)
    config = parse_keywords({"events": "alloc"}, before).config
    assert config.device == ("auto",)
    assert config.analysis == ("leaks",)
    assert config.collect_mode == "deferred"
    assert config.effective


def test_no_keyword_means_the_defaults() -> None:
    before = Config(device=("cpu",), analysis=(), effective=False)
    assert parse_keywords({}, before).config == parse_keywords({"device": "auto"}, before).config


@pytest.mark.parametrize(
    ("keywords", "error"),
    [
        ({"steps": "1"}, ValueError),
        ({"log_level": "info"}, ValueError),
        ({"collect_mode": "deferred"}, ValueError),
        ({"input_path": "/a,/b"}, ValueError),
        ({"nonsense": "1"}, ValueError),
        ({"device": "gpu"}, ValueError),
        ({"device": 3}, TypeError),
        ({"device": None}, TypeError),
    ],
)
def test_wrong_keywords(keywords: dict[str, object], error: type[Exception]) -> None:
    with pytest.raises(error) as caught:
        parse_keywords(keywords)
    assert "\n" not in str(caught.value)


def test_what_a_run_has_fixed_is_kept_with_a_warning() -> None:
    running = Config(output_path="/out", format="db", watch=Watch(start="a", end="b"), effective=True)
    parsed = parse_keywords({"format": "csv", "output": "/other", "device": "cpu"}, running)
    assert (parsed.config.format, parsed.config.output_path) == ("db", "/out")
    assert parsed.config.watch == running.watch
    assert parsed.config.device == ("cpu",)
    assert sum("fixed" in warning for warning in parsed.warnings) == 2
    assert any("keyword output is deprecated" in warning for warning in parsed.warnings)


def test_the_same_option_under_two_names_is_told() -> None:
    parsed = parse_keywords({"data_format": "db", "format": "csv"})
    assert parsed.config.format == "csv"
    assert any("twice" in warning for warning in parsed.warnings)


def test_what_only_the_command_line_can_say_is_kept() -> None:
    launched = parse_command_line({"ring_size": "32", "ring_wait": "0"}).config
    config = parse_keywords({"device": "cpu"}, launched).config
    assert (config.ring_mib, config.ring_wait_ms) == (32, 0)


# --- The native side ----------------------------------------------------------------------------------------------


def test_the_native_side_has_the_settings_that_are_declared_and_no_others() -> None:
    declared = [name for option in OPTIONS for name in option.native]
    assert sorted(declared) == sorted(_native.settings())


def test_options_reach_the_native_side_with_their_values() -> None:
    before = ";".join(f"{name}={value}" for name, value in _native.settings().items())
    try:
        _native.configure(settings_text(parse_command_line(EVERYTHING).config))
        assert _native.settings() == {
            "devices": "npu:3,cuda:1,cpu",
            "sorts": "12",  # accesses and inner operators; of launches --events has none
            "python_depth": "7",
            "native_depth": "3",
            "deferred": "1",
            "ring_mib": "32",
            "ring_wait_ms": "0",
            "watch_start": "a",
            "watch_output": "3",
            "watch_end": "b",
            "watch_content": "1",
            "output_directory": "/tmp/out",
        }
        longest = ",".join(f"{kind}:{n}" for kind in ("npu", "cuda") for n in range(32))
        _native.configure(settings_text(parse_command_line({"device": longest}).config))
        assert _native.settings()["devices"] == longest
        _native.configure("ring_mib=64")
        others = {**_native.settings(), "ring_mib": "64"}
        for wrong in ("ring_mib=1;wishes=1", "ring_mib=1;sorts=16", "ring_mib=1;sorts=", "ring_mib", "sorts=-1", "=1"):
            with pytest.raises(ValueError, match=wrong):
                _native.configure(wrong)
            assert _native.settings() == others, "nothing of it is taken"
    finally:
        _native.configure(before)


# --- Records and config.json --------------------------------------------------------------------------------------

EVERYTHING = {
    "device": "npu:3,cuda:1,cpu",
    "level": "op,kernel",
    "events": "alloc,access",
    "call_stack": "c:3,python:7",
    "analysis": "leaks,decompose,oom:12",
    "steps": "4,2",
    "watch": "a:3,b,full-content",
    "output_path": "/tmp/out",
    "format": "db",
    "log_level": "error",
    "collect_mode": "deferred",
    "ring_size": "32",
    "ring_wait": "0",
    "holders": "step",
    "operators": "inner",
}


def test_a_config_survives_session_json_and_config_json(tmp_path: Path) -> None:
    config = parse_command_line(EVERYTHING, analysis_options=("oom.lines=3", "leaks.min_steps=40")).config
    config = config.replaced(analysis=(*config.analysis, "idle"), needed_events=("alloc", "free", "access"))
    config = config.replaced(traceback=True, python_stack=False)
    usual = {name for name in Config.__annotations__ if getattr(config, name) == getattr(Config(), name)}
    assert usual <= {"compare", "input_paths"}, "an option is not in EVERYTHING"
    assert Config.from_dict(json.loads(json.dumps(config.as_dict()))) == config
    path = tmp_path / "config.json"
    write_config_json(config_json_text(config), str(path))
    parsed = read_config_json(str(path))
    assert parsed.config == config
    assert parsed.warnings == ()
    assert path.stat().st_mode & 0o777 == 0o640 & ~_umask()


def test_config_json_has_upstreams_keys_and_bits() -> None:
    values = to_config_json(parse_command_line(EVERYTHING).config)
    assert {key: values[key] for key in ("levelType", "eventType", "dumpEventType", "analysisType", "npuSlots")} == {
        "levelType": 0b11,
        "eventType": 0b1011,
        "dumpEventType": 0b1001,
        "analysisType": 0b1011,
        "npuSlots": 1 << 3,
    }
    assert values["SelectedStepList"] == {"stepIdList": [4, 2, 0, 0, 0], "stepCount": 2}
    assert values["watchConfig"] == {"isWatched": True, "fullContent": True, "start": "a", "end": "b", "outputId": 3}
    assert (values["collectAllNpu"], values["collectCpu"], values["dataFormat"]) == (False, True, 1)
    assert (values["collectMode"], values["logLevel"], values["oomTopK"], values["isEffective"]) == (1, 3, 12, True)


def test_a_config_json_of_upstream_with_gaps_is_read_with_a_line_per_gap() -> None:
    values = to_config_json(parse_command_line({"output_path": "/tmp/out"}).config)
    del values["msmemscope"], values["oomTopK"]
    values.update(pyStackDepth=5000, levelType="1", collectMode=7, npuSlots=0b101, collectAllNpu=False)
    parsed = from_config_json(values)
    assert parsed.config.python_stack_depth == 1000
    assert parsed.config.device == ("npu:0", "npu:2")
    assert parsed.config.collect_mode == "immediate"
    for key in ("oomTopK", "levelType", "collectMode"):
        assert sum(key in warning for warning in parsed.warnings) == 1
    assert len(parsed.warnings) == 3


@pytest.mark.parametrize("text", ["", "{", "[]", '{"outputDir": "a;b"}', '{"msmemscope": {"device": ["gpu"]}}'])
def test_a_damaged_config_json_is_one_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        read_config_json(str(path))
    assert "\n" not in str(caught.value)
    with pytest.raises(InputError, match="cannot read"):
        read_config_json(str(tmp_path / "absent"))


def test_a_record_is_frozen_and_complete() -> None:
    config = Config()
    with pytest.raises(AttributeError, match="frozen"):
        config.device = ("cpu",)  # type: ignore[misc]
    with pytest.raises(TypeError, match="nonsense"):
        config.replaced(nonsense=1)
    with pytest.raises(TypeError, match="start"):
        Watch(end="b")  # type: ignore[call-arg]
    assert config.replaced(format="db").format == "db"
    assert hash(config) == hash(Config())
    assert config != config.replaced(format="db")
    assert Facts() == Facts()


# --- The declarations themselves ----------------------------------------------------------------------------------


def test_every_option_is_declared_once_and_whole() -> None:
    flags = [flag for option in OPTIONS for flag in option.flags + option.deprecated]
    assert len(flags) == len(set(flags))
    for option in OPTIONS:
        assert option.help.endswith(".")
        assert option.cost
        if option.grammar:
            assert option.field in Config.__annotations__
        if option.default not in ("", "off", "all steps"):
            default = parse_command_line({option.name: option.default}).config
            # That an option was given is no part of its value.
            default = default.replaced(format_given=False, operators_given=False)
            assert default == parse_command_line({}).config, f"{option.name}: its default is not what no option gives"


def test_upstreams_options_are_all_there() -> None:
    upstream = """-h --help -V --version -v --verbose --debug -q --quiet --steps --call-stack --analysis --compare
    --watch -i --input-path --input -o --output-path --output --format --data-format --level --events --log-level
    --collect-mode --device"""
    flags = {flag for option in OPTIONS if not option.ours for flag in option.flags + option.deprecated}
    assert flags == set(upstream.split())
    assert {option.name for option in OPTIONS if option.api and not option.ours} == {
        "device", "level", "events", "call_stack", "analysis", "watch", "format", "output_path",
    }  # fmt: skip


def test_importing_the_options_pulls_in_nothing_else() -> None:
    # -S: without site, so that nothing is there already that the import would have to bring.
    root = Path(msmemscope.__file__).parent.parent
    program = f"import os, sys; sys.path.insert(0, {str(root)!r}); before = set(sys.modules)\n"
    program += "import msmemscope.options.given; print(*set(sys.modules) - before)"
    done = subprocess.run([sys.executable, "-S", "-c", program], capture_output=True, text=True, check=True)
    foreign = {name for name in done.stdout.split() if not name.startswith("msmemscope")}
    assert foreign - set(sys.builtin_module_names) <= {"__future__"}  # those that lie in the interpreter cost nothing


def test_an_option_error_is_both_a_usage_error_and_a_value_error() -> None:
    assert issubclass(OptionError, UsageError)
    assert issubclass(OptionError, ValueError)


def _umask() -> int:
    text = Path("/proc/self/status").read_text()
    return int(next(line for line in text.splitlines() if line.startswith("Umask")).split()[1], 8)
