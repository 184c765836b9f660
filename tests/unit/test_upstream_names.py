"""Names of upstream's API that do nothing here: each is there in every form, warns once, and lets the program go on."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from patience import LIMIT_S

import msmemscope
from msmemscope.analyzer import InefficientConfig, LeaksConfig

# As upstream's documents and tests write it.
SCRIPT = """
import asyncio, sys
import msmemscope
import msmemscope.describe as describe
from msmemscope import RecordFunction, TakeSnapshot, take_snapshot
from msmemscope.analyzer import InefficientAnalyzer, InefficientConfig, LeaksAnalyzer, LeaksConfig

class Tensor: pass
tensor, table = Tensor(), sys.argv[1]
for _ in range(2):
    msmemscope.config()
    msmemscope.init_framework_hooks("vllm_ascend", "11.0", "worker", "decompose")
    msmemscope.cleanup_framework_hooks()
    msmemscope.enable_npu_sanitizer()
    msmemscope.tracer.start()
    msmemscope.tracer.stop()
    msmemscope.take_snapshot()
    take_snapshot(0)
    take_snapshot(device_mask=[0, 1], name="before")
    take_snapshot((0,), "after")
    with TakeSnapshot(device_mask=0, name="block"):
        pass
    with RecordFunction("forward"), msmemscope.RecordFunction("inner") as range_:
        pass
    with describe.describer(owner="a"), msmemscope.describe.describer(owner="b"):
        pass
    describe.describer(0x1000, owner="c")
    msmemscope.check_leaks(table, "step start", 0)
    msmemscope.check_inefficient(table, mem_size=1, inefficient_type="early_allocation", idle_threshold=10)
    msmemscope.analyze("leaks", input_path=table, mstx_info="step start", start_index=0)
    msmemscope.analyzer.analyze("inefficient", input_path=table)
    LeaksAnalyzer().analyze(LeaksConfig(table, "step start", 0))
    InefficientAnalyzer().analyze(InefficientConfig(table, inefficient_type=["temporary_idleness"]))
    for name in msmemscope.list_analyzers()[:2]:
        arguments = {"input_path": table, "mstx_info": "step start", "start_index": 0}
        config = msmemscope.get_analyzer_config(name)
        assert hasattr(msmemscope.analyzer, config["config_class"])
        msmemscope.analyze(name, **{key: arguments[key] for key in config["parameters"] if key in arguments})

    @TakeSnapshot(name="function")
    @RecordFunction("function")
    @describe.describer(owner="function")
    def function(): return 7
    @describe.describer(owner="coroutine")
    async def coroutine(): return 8
    @RecordFunction("generator")
    def generator(): yield 9
    assert (function(), asyncio.run(coroutine()), next(generator())) == (7, 8, 9)
    assert function.__name__ == "function"
try:
    with describe.describer(owner="a"):
        raise KeyError("the program's own")
except KeyError:
    print("done")
"""


def test_a_script_of_upstream_runs_to_its_end_and_hears_of_each_name_once(tmp_path: Path) -> None:
    table = tmp_path / "memscope_dump_1.csv"
    names = "ID,Event,Event Type,Name,Timestamp(ns),Process Id,Thread Id,Device Id,Ptr,Attr"
    marks = [f'{at},MSTX,Mark,"step start",{1795 * 10**15 + at},1,1,0,N/A,' for at in range(3)]
    table.write_text("\n".join([names, *marks]) + "\n")
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(table)],
        cwd=tmp_path,  # the trace makes a session, and its run
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT_S,
    )
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "done"), done.stderr
    assert done.stdout.count("Device 0: nothing of HAL is left") == 8  # twice four calls
    lines = [line for line in done.stderr.splitlines() if "Warning:" in line]
    assert len(lines) == len(set(lines))
    later = [line for line in lines if " is not in this version" in line]
    assert [line.split("Warning: ")[1] for line in lines if line not in later] == [
        "no snapshot: torch uses no NPU or GPU in this process, and has no counters of its CPU memory",
        "no snapshot of device 0: no process that uses it came to a step before this process ended",
        "no snapshot of device 0, 1: no process that uses it came to a step before this process ended",
    ]
    warned = {line.split("msmemscope.", 1)[1].split(" is not in this version")[0] for line in later}
    assert warned == {"enable_npu_sanitizer"}


def test_the_analyzers_are_upstreams_and_ours() -> None:
    assert msmemscope.list_analyzers()[:2] == ["leaks", "inefficient"]
    assert {"leaks", "oom", "peers", "coverage", "decompose", "watch"} < set(msmemscope.list_analyzers())
    assert len(set(msmemscope.list_analyzers())) == len(msmemscope.list_analyzers())
    assert msmemscope.get_analyzer_config("leaks") == {
        "config_class": "LeaksConfig",
        "parameters": ["input_path", "mstx_info", "start_index"],
    }
    assert msmemscope.get_analyzer_config("inefficient") == {
        "config_class": "InefficientConfig",
        "parameters": ["input_path", "mem_size", "inefficient_type", "idle_threshold"],
    }


def test_the_options_of_an_analysis_of_ours() -> None:
    config = msmemscope.get_analyzer_config("peers")
    assert config["config_class"] == "PeerOptions"
    assert config["parameters"] == ["parallel", "min_share", "min_bytes", "pair_share", "pair_bytes"]
    assert config["defaults"]["min_share"] == 0.05  # type: ignore[index]
    assert "tp=2,pp=4,dp=8" in config["help"]["parallel"]  # type: ignore[index]


def test_every_public_name_is_there_and_no_other() -> None:
    for name in msmemscope.__all__:
        assert getattr(msmemscope, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'stepp'"):
        _ = msmemscope.stepp  # type: ignore[attr-defined]


def test_wrong_arguments_are_refused_as_upstream_does(tmp_path: Path) -> None:
    table = tmp_path / "memscope_dump_1.csv"
    table.touch()
    other = tmp_path / "memscope_dump_1.txt"
    other.touch()
    empty = tmp_path / "empty"
    empty.mkdir()
    for arguments, error in (
        ((str(tmp_path / "none.csv"), "x", 0), FileNotFoundError),
        ((str(empty), "x", 0), FileNotFoundError),
        ((str(other), "x", 0), ValueError),
        ((str(tmp_path / ("n" * 300 + ".csv")), "x", 0), FileNotFoundError),  # longer than a name can be
        ((f"/{'n' * 5000}.csv", "x", 0), ValueError),
        ((3, "x", 0), TypeError),
        ((str(table), 3, 0), TypeError),
        ((str(table), " ", 0), ValueError),
        ((str(table), "x", -1), ValueError),
        ((str(table), "x", "0"), ValueError),
    ):
        with pytest.raises(error):
            LeaksConfig(*arguments)  # type: ignore[arg-type]
        with pytest.raises(error):
            msmemscope.check_leaks(*arguments)  # type: ignore[arg-type]
    for wrong in (
        {"mem_size": -1},
        {"inefficient_type": "sometimes"},
        {"inefficient_type": []},
        {"inefficient_type": [["early_allocation"]]},
        {"idle_threshold": 0},
    ):
        with pytest.raises(ValueError, match="takes"):
            InefficientConfig(str(table), **wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="known: leaks, inefficient"):
        msmemscope.analyze("none", input_path=str(table))
    with pytest.raises(ValueError, match="takes input_path, a run directory"):
        msmemscope.analyze("oom")
    with pytest.raises(ValueError, match="known: leaks"):
        msmemscope.get_analyzer_config("none")
    with pytest.raises(ValueError, match="known: decompose, snapshot"):
        msmemscope.init_framework_hooks("pytorch", "2.6", "fsdp1", "both")
    with pytest.raises(TypeError):
        msmemscope.init_framework_hooks("pytorch", 2.6, "fsdp1", "decompose")  # type: ignore[arg-type]
