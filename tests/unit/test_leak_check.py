"""check_leaks() on upstream's files and on runs: blocks that are left between marks."""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_run import FakeRun, frame, process
from test_import_upstream import DATA, Dump, _as_db

import msmemscope
from msmemscope.analyzer import LeaksAnalyzer, LeaksConfig
from msmemscope.errors import InputError, RunError
from msmemscope.imports.job import Request, import_job
from msmemscope.vocabulary import DeviceType, Kind, Pool


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
    printed = capsys.readouterr().out
    assert "ERROR: device 0 has 0 marks" in printed
    assert "INFO: marks there are: 'epoch' (4 times)" in printed
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


# --- runs ----------------------------------------------------------------------------------------------------------

CARD = {"device_type": int(DeviceType.NPU), "device": 1, "pool": int(Pool.PTA)}


def marked_job(path: Path) -> Path:
    """Two ranks and a process without, on card and host: rank 1 alone keeps what it makes between A and B."""
    run = FakeRun([process(1), process(2, rank=1, pid=101, lost={"free": 3}), process(3, rank=None, pid=102)])
    epoch, other = run.text("epoch"), run.text("other")
    stack = run.frames(
        frame("/lib/python3.12/site-packages/torch/nn/a.py", "f", 3), frame("/home/me/train.py", "g", 58)
    )
    for ring in (1, 2, 3):
        for number in range(4):  # A, B, C, and one more
            base = 1000 * number
            run.add(Kind.MARK, base, ring, name=other, device_type=int(DeviceType.NPU), device=1)
            run.add(Kind.MARK, base + 1, ring, name=epoch, device_type=int(DeviceType.NPU), device=ring % 2)
            run.malloc(base + 2, 64 * number + 64, 256, ring=ring, stack_py=stack, **CARD)
            run.malloc(base + 3, 64 * number + 64, 512, ring=ring)
            if ring != 2:
                run.free(base + 4, 64 * number + 64, ring=ring, **CARD)
                run.free(base + 5, 64 * number + 64, ring=ring)
    return run.save(path)


def test_of_a_run_each_rank_goes_by_its_own_marks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = marked_job(tmp_path / "run")
    (left,) = msmemscope.check_leaks(str(run), "epoch", 0, pools=("HOST",))
    assert (left.rank, left.pid, left.device, left.pool) == (1, 101, "cpu", "HOST")
    assert (left.address, left.bytes, left.id, left.line) == (64, 512, 3, "")
    printed = capsys.readouterr().out
    assert "Device cpu of rank 0: nothing of HOST is left" in printed
    assert "Device cpu of process 102: nothing of HOST is left" in printed
    assert "3 events of rank 1 were lost" in printed
    assert LeaksAnalyzer().analyze(LeaksConfig(str(run), "other", 1)) == []  # of HAL, at which upstream looks
    assert "nothing of HAL was recorded" in capsys.readouterr().out


def test_a_card_goes_by_marks_of_threads_that_use_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = marked_job(tmp_path / "run")
    (left,) = msmemscope.check_leaks(str(run), "other", 1, pools=("PTA",))
    assert (left.rank, left.device, left.address, left.bytes, left.line) == (1, "1", 128, 256, "train.py:58")
    assert msmemscope.check_leaks(str(run), "epoch", 0, pools=("PTA",)) == []  # rank 1 marked another card
    printed = capsys.readouterr().out
    assert "ERROR: device 1 of rank 1 has 0 marks" in printed
    assert "marks there are" not in printed  # there are such, of other cards
    assert msmemscope.check_leaks(str(run), "epo", 0, pools=("PTA",)) == []
    assert "INFO: marks there are: 'epoch' (12 times), 'other' (12 times)" in capsys.readouterr().out
    assert msmemscope.check_leaks(str(run), "other", 2, pools=("PTA",)) == []
    assert "INFO: device 1 of rank 1 has 4 marks; from 2 on there are no 3" in capsys.readouterr().out


@pytest.mark.parametrize("pool", ["HAL", "PTA"])
@pytest.mark.parametrize("start", [0, 1])
def test_a_file_that_became_a_run_leaves_the_same(tmp_path: Path, pool: str, start: int) -> None:
    path, _ = marked(tmp_path)
    import_job(Request((path,), tmp_path / "run"))
    of_file = msmemscope.check_leaks(str(path), "epoch", start, pools=(pool,))
    of_run = msmemscope.check_leaks(str(tmp_path / "run"), "epoch", start, pools=(pool,))
    facts = [[(one.device, one.pid, one.pool, one.address, one.bytes) for one in made] for made in (of_file, of_run)]
    assert facts[0] == facts[1]
    assert facts[0] or (pool, start) == ("PTA", 1)


def test_a_directory_that_is_no_run_and_one_of_another_schema_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        msmemscope.check_leaks(str(tmp_path), "epoch", 0)
    (tmp_path / "run.json").write_text('{"schema": 0}')
    with pytest.raises(RunError, match="schema"):
        msmemscope.check_leaks(str(tmp_path), "epoch", 0)
