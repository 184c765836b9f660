"""One object around several runs at once: each end gets what its own begin gave."""

from __future__ import annotations

import threading

import pytest
from patience import LIMIT_S

from msmemscope.collect.rank.around import Around


class Numbered(Around):
    def __init__(self) -> None:
        super().__init__()
        self.ended: list[tuple[int, int]] = []
        self._last = 0

    def begin(self) -> int:
        self._last += 1
        return self._last

    def end(self, begun: int) -> None:
        self.ended.append((threading.get_ident(), begun))


def test_threads_that_are_in_it_at_once_end_their_own() -> None:
    around, first, second = Numbered(), threading.Event(), threading.Event()

    def early() -> None:
        with around:
            first.set()
            assert second.wait(LIMIT_S)

    thread = threading.Thread(target=early)
    thread.start()
    assert first.wait(LIMIT_S)
    with around:
        second.set()
        thread.join()
        assert around.ended == [(thread.ident, 1)]
    assert around.ended[1] == (threading.get_ident(), 2)


def test_it_is_entered_again_before_it_is_left_and_left_by_another_thread() -> None:
    around = Numbered()
    around.__enter__()
    with around:
        pass
    thread = threading.Thread(target=around.__exit__)
    thread.start()
    thread.join()
    assert [begun for _, begun in around.ended] == [2, 1]
    with pytest.raises(IndexError):
        around.__exit__()
