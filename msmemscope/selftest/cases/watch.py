"""Watched blocks that change though no operator said that it writes to them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from msmemscope.selftest.case import Expected, clean, fault, note
from msmemscope.selftest.loops import place
from msmemscope.selftest.script import KIB, Block, Process, Script
from msmemscope.vocabulary import Kind, WatchEnd, WatchMoment

LINES = {line: place(f"train.py:{line} go") for line in range(10, 20)}
SIZE = 4 * KIB


@dataclass
class Watched:
    """A watched block of a rank."""

    rank: Process
    block: Block
    sum: int = 1

    def look(self, moment: WatchMoment, op: str, line: int, changed: tuple[int, int] | None = None) -> None:
        """changed: the first byte that did, and to the last how many."""
        self.sum += changed is not None
        used, total = changed or (-1, -1)
        self._event(moment, name=op, line=line, attr=self.sum, used=used, total=total, times=1)

    def op(self, name: str, line: int, *, writes: Block | None = None, before: tuple[int, int] | None = None,
           inside: tuple[int, int] | None = None) -> None:  # fmt: skip
        """An operator beside which the block is looked at. before, inside: what has changed by then."""
        if writes is not None:
            self.rank.access(writes, name, write=True)
        self.look(WatchMoment.BEFORE, name, line, before)
        self.look(WatchMoment.AFTER, name, line, inside)

    def begin(self, name: str = "weights") -> None:
        self._event(WatchMoment.BEGAN, name=name, line=10, attr=self.sum, used=0, total=0)

    def end(self, why: WatchEnd) -> None:
        self._event(WatchMoment.ENDED, name="", line=10, total=why)

    def _event(self, moment: WatchMoment, *, name: str, line: int, times: int = 0, **values: int) -> None:
        self.rank.event(
            Kind.WATCH,
            ptr=self.block.ptr,
            size=self.block.size,
            name=self.rank.text(name),
            aux=moment + 1024 * times,
            stack_py=self.rank.stack(LINES[line]),
            device_type=self.block.device_type,
            device=self.block.device,
            **values,
        )


def watched(rank: Process) -> tuple[Watched, Block]:
    """A watched block, and one before it that is not."""
    other = rank.alloc(SIZE, place("train.py:5 make"))
    one = Watched(rank, rank.alloc(SIZE, place("train.py:6 make")))
    one.begin()
    one.op("aten::add", 11)
    return one, other


def finish(rank: Process) -> None:
    for _ in range(14):
        rank.step()


def changed(line: int, size: int, *ranks: int, **facts: Any) -> Expected:
    return Expected("corruption", ranks=ranks or (0,), place=f"train.py:{line}", bytes=size, **facts)


@fault("watch", changed(12, 16, says=("bytes 0 to 15",)))
def an_operator_writes_past_its_block(job: Script) -> None:
    rank = job.rank()
    one, other = watched(rank)
    one.op("mine::shift", 12, writes=other, inside=(0, 16))
    finish(rank)


@fault("watch", changed(12, 12, evidence={"first_byte": 40, "last_byte": 51}))
def a_change_between_two_operators(job: Script) -> None:
    rank = job.rank()
    one, _ = watched(rank)
    one.op("aten::mul", 12, before=(40, 12))
    finish(rank)


@fault("watch", changed(12, 16, 0, 1, evidence={"times": 6}))
def the_same_mistake_on_two_ranks(job: Script) -> None:
    for rank in job.ranks(2):
        one, other = watched(rank)
        for _ in range(3):
            one.op("mine::shift", 12, writes=other, inside=(0, 16))
        finish(rank)


@clean("watch", note("watch_ended", ranks=(0,), bytes=SIZE))
def a_watched_block_that_is_freed(job: Script) -> None:
    rank = job.rank()
    one, _ = watched(rank)
    one.end(WatchEnd.FREED)
    rank.free(one.block)
    finish(rank)


@clean("watch")
def writes_that_were_declared(job: Script) -> None:
    rank = job.rank()
    one, _ = watched(rank)
    one.op("aten::add_", 12, writes=one.block, inside=(0, SIZE))
    one.end(WatchEnd.REMOVED)
    finish(rank)
