"""check_leaks() on upstream's files: blocks that are left between marks."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_import_upstream import DATA, Dump, _as_db

import msmemscope
from msmemscope.analyzer import LeaksAnalyzer, LeaksConfig
from msmemscope.errors import InputError


def marked(tmp_path: Path) -> tuple[Path, dict[str, int]]:
    """Blocks before A, between A and B, behind B; freed before and behind C."""
    dump, ids = Dump(), {}

    def mark() -> None:
        dump.add("MSTX", "Mark", name='"epoch"')

    def malloc(name: str, address: int, kind: str = "HAL") -> None:
        ids[name] = len(dump.lines)
        dump.memory("MALLOC", address, 3 << 20, kind=kind)

    malloc("early", 0x1000)
    mark()
    malloc("kept", 0x2000)
    malloc("freed", 0x3000)
    malloc("freed too late", 0x4000)
    malloc("of the pool", 0x5000, "PTA")
    malloc("replaced", 0x6000)
    malloc("replacing", 0x6000)
    dump.memory("FREE", 0x2000, 3 << 20, kind="PTA")  # of another pool
    mark()
    malloc("behind B", 0x7000)
    dump.memory("FREE", 0x3000, 3 << 20, kind="HAL")
    mark()
    dump.memory("FREE", 0x4000, 3 << 20, kind="HAL")
    dump.memory("FREE", 0x2000, 3 << 20, kind="HAL", more=",shadow:true")
    mark()
    return dump.save(tmp_path / "memscope_dump_1.csv"), ids


def test_what_is_left_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, ids = marked(tmp_path)
    left = msmemscope.check_leaks(str(path), "epoch", 0)
    assert [one.id for one in left] == [ids["kept"], ids["freed too late"], ids["replacing"]]
    assert {(one.device, one.pid, one.pool, one.bytes) for one in left} == {("0", 7, "HAL", 3 << 20)}
    printed = capsys.readouterr().out
    assert "Device 0: 3 blocks of 9.000000 MB are left" in printed
    assert f"0x0000000000002000, MALLOC with ID {ids['kept']} of process 7" in printed
    of_pool = msmemscope.check_leaks(str(path), "epoch", 0, pools=("PTA",))
    assert [one.id for one in of_pool] == [ids["of the pool"]]
    assert [one.id for one in msmemscope.check_leaks(str(path), "epoch", 1)] == [ids["behind B"]]


def test_a_db_and_the_class_say_the_same(tmp_path: Path) -> None:
    path, _ = marked(tmp_path)
    _as_db(path, path.with_suffix(".db"))
    left = msmemscope.check_leaks(str(path), "epoch", 0)
    assert msmemscope.check_leaks(str(path.with_suffix(".db")), "epoch", 0) == left
    assert LeaksAnalyzer().analyze(LeaksConfig(str(path), "epoch", 0)) == left
    assert LeaksAnalyzer(LeaksConfig(str(path), "epoch", 0)).analyze() == left


def test_too_few_marks_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, _ = marked(tmp_path)
    assert msmemscope.check_leaks(str(path), "epo", 0) == []
    assert "ERROR: device 0 has 0 marks" in capsys.readouterr().out
    assert msmemscope.check_leaks(str(path), "epoch", 2) == []
    assert "INFO: device 0 has 4 marks; from 2 on there are no 3" in capsys.readouterr().out
    with pytest.raises(ValueError, match="pools takes"):
        msmemscope.check_leaks(str(path), "epoch", 0, pools=("SWAP",))
    (tmp_path / "memscope_dump_2.csv").write_text("a,b\n")
    with pytest.raises(InputError, match="no column"):
        msmemscope.check_leaks(str(tmp_path / "memscope_dump_2.csv"), "epoch", 0)


def test_upstreams_sample_has_no_three_marks(capsys: pytest.CaptureFixture[str]) -> None:
    path = DATA / "upstream" / "leaks.csv"
    if not path.is_file():
        pytest.skip(f"{path} is not there (MSMEMSCOPE_UPSTREAM_FILES names another place)")
    assert msmemscope.check_leaks(str(path), "load model", 0) == []
    assert "ERROR: device 0 has 0 marks" in capsys.readouterr().out
