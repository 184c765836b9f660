"""Whose the blocks at an address were: in which steps, from which label on, and what is said where there was none."""

from __future__ import annotations

import pytest
from fake_run import FakeRun, frame, process

from msmemscope.analysis.owner_history import BlockHistory, find_histories
from msmemscope.errors import InputError
from msmemscope.report import owner_text as text_module
from msmemscope.report.owner_text import owner_text
from msmemscope.vocabulary import DeviceType, Flag, Kind, Pool

NPU = {"device_type": int(DeviceType.NPU), "device": 0, "pool": int(Pool.PTA)}
DETAIL_1, USER = 3, 5
AT = 0x12C041200000


class Story:
    """Events one after the other, of one process."""

    def __init__(self, ring: int = 1, run: FakeRun | None = None) -> None:
        self.run = run or FakeRun([process(1), process(2, rank=1, pid=200)])
        self._ring = ring
        self._ts = 0

    def _tell(self, kind: Kind, **fields: int) -> Story:
        self._ts += 10
        self.run.add(kind, self._ts, self._ring, **(NPU | fields))
        return self

    def malloc(self, ptr: int = AT, size: int = 512, **fields: int) -> Story:
        return self._tell(Kind.MALLOC, ptr=ptr, size=size, **fields)

    def free(self, ptr: int = AT) -> Story:
        return self._tell(Kind.FREE, ptr=ptr)

    def label(self, name: str, level: int = USER, ptr: int = AT) -> Story:
        return self._tell(Kind.LABEL_ADDR, ptr=ptr, name=self.run.text(name), aux=level)

    def step(self, number: int) -> Story:
        return self._tell(Kind.STEP, step=number, attr=number)

    def histories(self, address: int = AT) -> list[BlockHistory]:
        return list(find_histories(self.run, address, [self._ring]).blocks)  # type: ignore[arg-type]


def owners(history: BlockHistory) -> list[tuple[int, str]]:
    return [(one.step, one.owner) for one in history.owners]


def test_a_change_counts_from_its_step_on_and_the_first_label_from_the_beginning() -> None:
    story = Story().malloc().step(1).label("mine").step(2).step(3).label("yours").step(4).label("ours").step(5)
    (block,) = story.histories()
    assert owners(block) == [(0, "PTA@mine"), (3, "PTA@yours"), (4, "PTA@ours")]
    assert [block.owner_in(step) for step in range(6)] == [
        *("PTA@mine", "PTA@mine", "PTA@mine", "PTA@yours", "PTA@ours", "PTA@ours")
    ]
    assert (block.malloc_step, block.free_step) == (0, None)


def test_a_level_that_is_named_after_a_change_of_another_was_so_before_it() -> None:
    story = Story().malloc().label("mine").step(1).label("yours").step(2).label("weight", DETAIL_1)
    (block,) = story.histories()
    assert owners(block) == [(0, "PTA@weight@mine"), (1, "PTA@weight@yours")]


def test_every_block_that_held_the_address_has_its_own_owners() -> None:
    story = (
        Story()
        .malloc()
        .label("mine")
        .step(1)
        .free()
        .malloc(AT - 100, 512)
        .label("yours", ptr=AT)
        .step(2)
        .free(AT - 100)
    )
    first, second = story.histories()
    assert (first.ptr, first.malloc_step, first.free_step, owners(first)) == (AT, 0, 1, [(0, "PTA@mine")])
    assert (second.ptr, second.malloc_step, second.free_step, owners(second)) == (AT - 100, 1, 2, [(1, "PTA@yours")])
    assert [one.ptr for one in story.histories(AT - 100)] == [AT - 100]
    assert story.histories(AT + 412) == [first]  # one byte past the second's end
    assert story.histories(AT + 512) == []


def test_a_handle_of_physical_memory_is_no_address() -> None:
    assert Story().malloc(flags=Flag.HANDLE, pool=Pool.HAL).histories() == []


@pytest.fixture
def story(monkeypatch: pytest.MonkeyPatch) -> Story:
    story = Story()
    stack = story.run.frames(frame("/src/train.py", "build", 12))
    story.malloc(stack_py=stack).label("mine").step(1).step(2).label("yours").step(3).free().step(4)
    Story(2, story.run).malloc(size=64).step(1)
    monkeypatch.setattr(text_module, "Run", lambda _: story.run)
    return story


def test_the_text_says_whose_it_was_in_a_step(story: Story) -> None:
    assert owner_text("run", AT + 5, rank=0, step=1).splitlines() == [
        "rank 0 [pid 100], npu:0, PTA: block 1, 512 bytes (512 B) from 0x000012c041200000, steps 0 to 3",
        "  allocated at /src/train.py(12): build",
        "  in step 1: PTA@mine",
        "  from step 0: PTA@mine",
        "  from step 2: PTA@yours",
    ]
    assert "  in step 2: PTA@yours" in owner_text("run", AT, rank=0, step=2)


def test_without_a_rank_all_processes_are_looked_at(story: Story) -> None:
    lines = [line for line in owner_text("run", AT).splitlines() if not line.startswith(" ")]
    assert [line.partition(",")[0] for line in lines] == ["rank 0 [pid 100]", "rank 1 [pid 200]"]
    assert lines[1].endswith("step 0 on, alive at the end")


def test_where_nothing_was_it_is_said(story: Story) -> None:
    with pytest.raises(InputError, match="no recorded block held the address 0x5"):
        owner_text("run", 5)
    with pytest.raises(InputError, match=r"in step 4; blocks did in steps 0 to 3$"):
        owner_text("run", AT, rank=0, step=4)
    with pytest.raises(InputError, match="no rank 7 was recorded; its ranks are 0-1"):
        owner_text("run", AT, rank=7)
