"""Memory samples: what is said of processes and cards, and that a bad dcmi costs nothing but its own figures."""

from __future__ import annotations

import ctypes
import mmap
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from built_once import built_once
from compilers import cxx_compiler, shared_library
from fake_run import SECOND, FakeRun, process
from patience import LIMIT_S

from msmemscope.analysis.usage import UsageIndex
from msmemscope.collect.agent import usage
from msmemscope.collect.agent.dcmi import Card, Dcmi, DcmiError, candidates
from msmemscope.collect.agent.usage import Cards, CardWatch, Recorded, Usage, npus_in
from msmemscope.vocabulary import DeviceType
from msmemscope.wire import messages

MIB = 1 << 20
SOURCE = Path(__file__).with_name("fake_dcmi.cpp")


class Fake:
    """The loaded fake library; every test has a copy of its own, since its faults are global."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        self.library = ctypes.CDLL(self.path)

    def set(self, name: str, value: int) -> None:
        ctypes.c_int.in_dll(self.library, f"fake_{name}").value = value

    def get(self, name: str) -> int:
        return ctypes.c_int.in_dll(self.library, f"fake_{name}").value

    def hold(self, place: int, pid: int, size: int) -> None:
        (ctypes.c_int * 4).in_dll(self.library, "fake_pids")[place] = pid
        (ctypes.c_ulong * 4).in_dll(self.library, "fake_bytes")[place] = size

    def load(self, tick: Callable[[], None] = lambda: None) -> Dcmi:
        return Dcmi(tick, [self.path])


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = cxx_compiler("the stand-in for dcmi")

    def build(place: Path) -> Path:
        return shared_library(compiler, SOURCE, place / "libdcmi.so", "-std=c++17")

    return built_once(tmp_path_factory, "dcmi", build)


@pytest.fixture
def fake(built: Path, tmp_path: Path) -> Iterator[Fake]:
    copy = tmp_path / "libdcmi.so"
    shutil.copy(built, copy)
    library = Fake(copy)
    yield library
    library.set("hang", 0)


def wait_for(condition: Callable[[], Any], what: str) -> Any:
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline:
        if value := condition():
            return value
        time.sleep(0.002)
    raise AssertionError(f"waited in vain for {what}")


def watched(fake: Fake, **options: Any) -> Callable[[float, Callable[[str], None]], CardWatch]:
    return lambda interval, say: CardWatch(interval, say, load=fake.load, **options)


def rows_of(sent: list[dict[str, Any]]) -> list[messages.UsageRow]:
    """Through the wire, as the shard takes them."""
    rows: list[messages.UsageRow] = []
    for fields in sent:
        data = messages.pack("usage", "s", layout=messages.USAGE_LAYOUT, **fields)
        rows += messages.usage(messages.unpack(data, "s", messages.AGENT_TYPES)).rows
    return rows


def until_card(sampler: Usage, recorded: list[Recorded]) -> list[messages.UsageRow]:
    sent: list[dict[str, Any]] = []

    def seen() -> bool:
        message = sampler.message(recorded)
        if message is not None:
            sent.append(message)
        return any(row.device != "cpu" for row in rows_of(sent))

    wait_for(seen, "a sample of the cards")
    return rows_of(sent)


def test_a_library_is_found_by_its_name_and_then_below_cann(fake: Fake) -> None:
    assert candidates({}) == ["libdcmi.so"]
    assert candidates({"ASCEND_HOME_PATH": "/cann"}) == ["libdcmi.so", "/cann/lib64/libdcmi.so"]
    cards = Dcmi(names=["libdcmi_not_there.so", fake.path]).sample()
    assert [(card.device, card.used, card.total, card.processes) for card in cards] == [
        (4, 100 * MIB, 65536 * MIB, {}),
        (6, 200 * MIB, 65536 * MIB, {}),
    ]
    with pytest.raises(DcmiError, match="libdcmi_not_there"):
        Dcmi(names=["libdcmi_not_there.so"])


def test_library_without_the_functions_is_refused() -> None:
    with pytest.raises(DcmiError, match="has no dcmi_init"):
        Dcmi(names=["libc.so.6"])


def test_rows_of_a_process_on_its_card(fake: Fake) -> None:
    fake.hold(2, os.getpid(), 50 * MIB)
    said: list[str] = []
    sampler = Usage(0.01, said.append, watch=watched(fake), own_namespace=False)
    rows = until_card(sampler, [Recorded(1, os.getpid(), frozenset({6}))])
    sampler.stop()
    host, card = (next(row for row in rows if row.device == name) for name in ("cpu", "npu:6"))
    assert {row.device for row in rows} == {"cpu", "npu:6"}  # not card 4, which it does not use
    assert host.rss == host.process_used
    assert (host.rss or 0) > MIB
    assert (card.used, card.total, card.process_used) == (200 * MIB, 65536 * MIB, 50 * MIB)
    assert said == []


def test_cards_are_left_alone_without_npu_events() -> None:
    def never(*_: Any) -> CardWatch:
        raise AssertionError("the cards were asked for")

    sampler = Usage(0.01, print, watch=never, own_namespace=False)
    message = sampler.message([Recorded(1, os.getpid(), frozenset())])
    assert message is not None
    assert [row.device for row in rows_of([message])] == ["cpu"]


@pytest.mark.parametrize(("foreign", "held"), [(0, 50 * MIB), (4_194_303, None)])
def test_pids_of_another_namespace_stay_unknown(fake: Fake, foreign: int, held: int | None) -> None:
    """In a container the driver's list may name host processes: a number that is ours by chance is not believed."""
    fake.hold(2, os.getpid(), 50 * MIB)
    fake.hold(3, foreign, 10 * MIB)
    sampler = Usage(0.01, print, watch=watched(fake), own_namespace=True)
    rows = until_card(sampler, [Recorded(1, os.getpid(), frozenset({6}))])
    sampler.stop()
    (card,) = [row for row in rows if row.device == "npu:6"]
    assert (card.process_used, card.used) == (held, 200 * MIB)


class Told:
    """Stands for the thread that asks the cards: a test says what it has seen."""

    gave_up = ""

    def __init__(self) -> None:
        self.sample: Cards | None = None

    def newest(self) -> Cards | None:
        return self.sample

    def tell(self, used: int, processes: dict[int, int] | None) -> None:
        self.sample = Cards(time.monotonic_ns(), (Card(4, used, 64 << 30, processes),))


def test_the_last_sample_of_a_card_counts_when_its_process_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """A short run may have no other. The driver named the process, so it was there when the sample was taken."""
    rss, cards, pid = 7 * MIB, Told(), os.getpid()
    monkeypatch.setattr(usage, "_resident", lambda _pid: (rss, 0, 0))
    sampler = Usage(0.1, print, watch=lambda *_: cards, own_namespace=False)  # type: ignore[arg-type,return-value]
    recorded = [Recorded(1, pid, frozenset({4}))]
    assert [row.device for row in rows_of([sampler.message(recorded) or {}])] == ["cpu"]
    assert not sampler.has_first
    cards.tell(100 * MIB, {pid: 50 * MIB})
    assert sampler.has_first  # it is not waited for the next round
    assert [row.device for row in rows_of([sampler.message(recorded) or {}])] == ["npu:4"]
    assert not sampler.has_first
    rss = 0
    cards.tell(110 * MIB, {pid: 60 * MIB})
    (row,) = rows_of([sampler.message(recorded) or {}])
    assert (row.device, row.process_used, row.rss) == ("npu:4", 60 * MIB, 7 * MIB)


def test_a_card_is_not_told_of_a_process_that_was_gone_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the driver's list of processes is not to be believed, nobody says that it was there."""
    rss, cards = 7 * MIB, Told()
    monkeypatch.setattr(usage, "_resident", lambda _pid: (rss, 0, 0))
    sampler = Usage(0.1, print, watch=lambda *_: cards, own_namespace=True)  # type: ignore[arg-type,return-value]
    recorded = [Recorded(1, os.getpid(), frozenset({4}))]
    assert sampler.message(recorded) is not None
    rss = 0
    cards.tell(100 * MIB, {0: 50 * MIB})
    assert sampler.message(recorded) is None


def test_mapped_files_are_told_apart(tmp_path: Path) -> None:
    path = tmp_path / "weights"
    path.write_bytes(b"x" * 8 * MIB)

    def mapped() -> int:
        (row,) = rows_of([Usage(0.1, print).message([Recorded(1, os.getpid(), frozenset())]) or {}])
        assert row.mapped is not None
        assert row.rss is not None
        assert row.mapped + (row.shared or 0) < row.rss
        return row.mapped

    before = mapped()
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as weights:
        assert weights[:: mmap.PAGESIZE].count(b"x") == 8 * MIB // mmap.PAGESIZE
        assert 8 * MIB <= mapped() - before < 9 * MIB
    assert abs(mapped() - before) < MIB


def test_shared_memory_is_told_apart() -> None:
    with mmap.mmap(-1, 8 * MIB) as shared:  # anonymous and shared: the kernel counts it as shmem
        shared.write(b"x" * 8 * MIB)
        sampler = Usage(0.1, print, own_namespace=False)
        (row,) = rows_of([sampler.message([Recorded(1, os.getpid(), frozenset())]) or {}])
    assert row.rss is not None
    assert row.shared is not None
    assert 8 * MIB <= row.shared < row.rss
    (row,) = rows_of([Usage(0.1, print).message([Recorded(1, os.getpid(), frozenset())]) or {}])
    assert (row.shared or 0) < 8 * MIB


def test_a_process_that_grows_is_looked_at_again_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only as long as it holds more than ever: what swings costs no more than what rests."""
    rss = 50 * MIB
    monkeypatch.setattr(usage, "_resident", lambda _pid: (rss, 0, 0))
    sampler = Usage(0.1, print, own_namespace=False)
    pauses = []
    for mib in (50, 51, 52, 20, 52, 20, 52, 20, 53):
        rss = mib * MIB
        sampler.message([Recorded(1, 1, frozenset())])
        pauses.append(sampler.pause_s)
    assert pauses == [0.01, 0.01, 0.01, 0.02, 0.04, 0.08, 0.1, 0.1, 0.01]


def test_what_was_before_the_first_sample_is_told_by_it_when_it_came_soon() -> None:
    run = FakeRun([process(1)])
    run.sample(5 * SECOND, "npu:4", used=3, total=9, process_used=2)
    run.sample(6 * SECOND, "npu:4", used=4, total=9, process_used=3)
    run.sample(5 * SECOND, "cpu", used=1, total=1, process_used=1)
    index = UsageIndex(run)  # type: ignore[arg-type]
    times = np.array([0, 4 * SECOND - 1, 4 * SECOND, 5 * SECOND, 6 * SECOND - 1, 9 * SECOND], np.uint64)
    assert index.at_times(1, "npu:4", times)["used"].tolist() == [-1, -1, 3, 3, 3, 4]
    assert index.cards(1) == ["npu:4"]
    assert index.cards(2) == []


def test_what_does_not_move_is_said_once(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage, "_resident", lambda _pid: (7 * MIB, 0, 0))
    sampler = Usage(0.001, print, watch=watched(fake), own_namespace=False)
    recorded = [Recorded(1, os.getpid(), frozenset({4}))]
    assert len(until_card(sampler, recorded)) == 2
    before = fake.get("calls")
    wait_for(lambda: sampler.message(recorded) is None and fake.get("calls") > before + 20, "more samples")
    (ctypes.c_ulonglong * 2).in_dll(fake.library, "fake_used_mib")[0] = 101
    message = wait_for(lambda: sampler.message(recorded), "the change")
    sampler.stop()
    assert [(row.device, row.used) for row in rows_of([message])] == [("npu:4", 101 * MIB)]


def test_a_call_that_hangs_is_given_up_and_said_once(fake: Fake) -> None:
    fake.set("hang", 1)
    said: list[str] = []
    sampler = Usage(0.001, said.append, renew_s=0, watch=watched(fake, hangs_s=0.05), own_namespace=False)
    recorded = [Recorded(1, os.getpid(), frozenset({4}))]

    def ask() -> bool:
        message = sampler.message(recorded)  # comes back although the call does not
        assert message is not None
        assert [row.device for row in rows_of([message])] == ["cpu"]
        return bool(message["cards"])

    wait_for(ask, "giving up")
    fake.set("hang", 0)
    for _ in range(20):
        assert ask()
    assert len(said) == 1
    assert "not returned" in said[0]
    assert fake.get("calls") == 1


def test_a_slow_library_is_no_hanging_one(fake: Fake) -> None:
    """Two cards, each answering after 0.4 s: longer in all than a single call may take."""
    fake.set("slow_ms", 400)
    said: list[str] = []
    sampler = Usage(0.001, said.append, renew_s=0, watch=watched(fake, hangs_s=0.7), own_namespace=False)
    recorded = [Recorded(1, os.getpid(), frozenset({4, 6}))]
    wait_for(lambda: sampler.message(recorded) and fake.get("calls") > 4, "more than two rounds")
    sampler.stop()
    assert said == []


@pytest.mark.parametrize(("fault", "text"), [("init", "dcmi_init returned 9"), ("hbm", "")])
def test_errors(fake: Fake, fault: str, text: str) -> None:
    fake.set(fault, 9)
    said: list[str] = []
    sampler = Usage(0.001, said.append, watch=watched(fake), own_namespace=False)
    recorded = [Recorded(1, os.getpid(), frozenset({4}))]
    if fault == "hbm":  # the processes' bytes are still to be had
        fake.hold(0, os.getpid(), 9 * MIB)
        (card,) = [row for row in until_card(sampler, recorded) if row.device == "npu:4"]
        assert (card.used, card.total, card.process_used) == (None, None, 9 * MIB)
    else:
        sent: list[dict[str, Any]] = []

        def told() -> bool:  # although no figure is news any more
            sent.extend(filter(None, [sampler.message(recorded)]))
            return bool(sent and sent[-1]["cards"])

        wait_for(told, "giving up")
        assert [text in line for line in said] == [True]
        assert text in sent[-1]["cards"]
        assert sampler.message(recorded) is None
    sampler.stop()


def test_devices_named_in_a_batch() -> None:
    def columns(kinds: list[int], devices: list[int]) -> dict[str, bytes]:
        return {"device_type": bytes(kinds), "device": np.array(devices, "<i2").tobytes()}

    npu, cpu = int(DeviceType.NPU), int(DeviceType.CPU)
    assert npus_in(columns([npu], [3]), npu) == {3}
    assert npus_in(columns([npu], [3, 4, -1]), npu) == {3, 4}
    assert npus_in(columns([npu, cpu], [3]), npu) == {3}
    assert npus_in(columns([npu, cpu, npu, cpu], [3, 0, 5, 9]), npu) == {3, 5}
    assert npus_in(columns([cpu], [3]), npu) == frozenset()


ROW = [1, 2, 3, "cpu", 1, 1, 1, 1, 1, 1]


@pytest.mark.parametrize(
    "change",
    [
        {"layout": messages.USAGE_LAYOUT - 1},
        {"layout": messages.USAGE_LAYOUT + 1},
        {"rows": [ROW[:3]]},
        {"rows": [[*ROW[:6], -1, *ROW[7:]]]},
        {"rows": [[*ROW[:6], 1.5, *ROW[7:]]]},
        {"rows": [[*ROW[:3], 4, *ROW[4:]]]},
        {"rows": [[1 << 64, *ROW[1:]]]},
        {"rows": [ROW] * (messages.MAX_USAGE_ROWS + 1)},
        {"cards": 7},
    ],
)
def test_a_message_of_another_shape_is_refused(change: dict[str, Any]) -> None:
    fields = {"layout": messages.USAGE_LAYOUT, "ts": 1, "interval_ms": 100, "cards": "", "rows": []}
    assert len(messages.usage({"type": "usage", **fields, "rows": [ROW]}).rows) == 1
    with pytest.raises(messages.WireError):
        messages.usage({"type": "usage", **(fields | change)})
