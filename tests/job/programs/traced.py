"""Calls of every sort between tracer.start() and stop(); prints how often each function ran, by its own count."""

import asyncio
import contextlib
import json
import sys
import threading
from collections import Counter

import msmemscope

ran = Counter()


def plain():
    ran["plain"] += 1


def recursive(depth):
    ran["recursive"] += 1
    if depth:
        recursive(depth - 1)


def raising():
    ran["raising"] += 1
    raise ValueError


def numbers():
    ran["numbers"] += 4  # three times resumed to a yield, once to its end
    for number in range(3):
        plain()
        yield number


class Widget:
    def __init__(self):
        ran["Widget.__init__"] += 1

    def method(self):
        ran["Widget.method"] += 1


class Tensor:
    def __torch_dispatch__(self):
        ran["Tensor.__torch_dispatch__"] += 1
        hidden()


def hidden():
    pass


async def coroutine():
    ran["coroutine"] += 1
    plain()


def in_thread():
    ran["in_thread"] += 1
    for _ in range(10):
        plain()


def long_lived(begun, end):
    begun.set()
    end.wait()
    plain()


@msmemscope.RecordFunction("decorated")
def decorated():
    ran["decorated"] += 1
    return 7


@msmemscope.RecordFunction("decorated coroutine")
async def decorated_coroutine():
    ran["decorated_coroutine"] += 1


@msmemscope.RecordFunction("decorated generator")
def decorated_numbers():
    yield 1
    yield 2


def main():
    begun, end = threading.Event(), threading.Event()
    earlier = threading.Thread(target=long_lived, args=(begun, end))
    earlier.start()
    begun.wait()
    plain()  # before the trace
    ran.clear()
    msmemscope.tracer.start()
    msmemscope.tracer.start()
    end.set()
    earlier.join()
    plain()
    recursive(5)
    with contextlib.suppress(ValueError):
        raising()
    assert list(numbers()) == [0, 1, 2]
    Widget().method()
    assert sorted([2, 1], key=lambda number: plain() or number) == [1, 2]
    Tensor().__torch_dispatch__()
    asyncio.run(coroutine())
    thread = threading.Thread(target=in_thread)
    thread.start()
    thread.join()
    with msmemscope.RecordFunction("outer"), msmemscope.RecordFunction("inner, with a comma"):
        plain()
    assert decorated() == 7
    asyncio.run(decorated_coroutine())
    assert list(decorated_numbers()) == [1, 2]
    msmemscope.tracer.stop()
    counted = dict(ran)
    plain()  # after it
    msmemscope.tracer.stop()
    print(json.dumps({"version": sys.version_info[:2], "ran": counted}))


main()
