"""Labels in every form, around allocations whose sizes say which owner is due: prints size and owner, a line each."""

from __future__ import annotations

import asyncio
import importlib
import threading
from collections.abc import AsyncIterator, Iterator

import torch

from msmemscope import describe
from msmemscope.describe import describer

kept = []
_size = 1000


def allocate(owner: str) -> torch.Tensor:
    """A tensor of a size that no other has; its owner is to be `owner`."""
    global _size
    _size += 1
    kept.append(torch.empty(_size, dtype=torch.uint8))
    print(_size, owner or "-", flush=True)
    return kept[-1]


allocate("")
with describer(owner="block"):
    allocate("block")
    with describer(owner="inner"), describer(owner="third"):
        allocate("block@inner@third")
        with describer(owner="fourth"):
            allocate("block@inner@third")
        allocate("block@inner@third")
    allocate("block")
allocate("")


@describer(owner="function")
def function() -> None:
    allocate("function")


@describer(owner="generator")
def generator() -> Iterator[int]:
    allocate("generator")
    yield 1
    allocate("generator")


function()
for _ in generator():
    allocate("")

by_hand = describer(owner="by hand")
by_hand.__enter__()
allocate("by hand")
by_hand.__exit__(None, None, None)
allocate("")

describer(owner="other object").__enter__()
allocate("other object")
describer(owner="other object").__exit__()
allocate("")
describer(owner="never entered").__exit__()
allocate("")

with describer(owner="parent"):
    thread = threading.Thread(target=lambda: allocate(""))
    thread.start()
    thread.join()
    allocate("parent")


@describer(owner="coroutine")
async def coroutine() -> None:
    for _ in range(3):
        allocate("outside@coroutine")
        await asyncio.sleep(0)


async def other() -> None:
    with describer(owner="other"):
        for _ in range(3):
            allocate("outside@other")
            await asyncio.sleep(0)


async def nobody() -> None:
    for _ in range(3):
        allocate("outside")
        await asyncio.sleep(0)


@describer(owner="stream")
async def stream() -> AsyncIterator[int]:
    for number in range(2):
        allocate("outside@stream")
        await asyncio.sleep(0)
        yield number


async def reader() -> None:
    async for _ in stream():
        allocate("outside")


async def main() -> None:
    await asyncio.gather(coroutine(), other(), nobody(), reader(), other())


with describer(owner="outside"):
    asyncio.run(main())
    allocate("outside")
allocate("")

tensor = allocate("tagged")
describer(tensor[100:], owner="tagged")
other_tensor = allocate("address")
describer(other_tensor.data_ptr() + 17, owner="address")
try:
    with describer(owner="raised"):
        raise KeyError
except KeyError:
    allocate("")
control = allocate("a\\x1bb@c")
describer(control, owner="a\x1bb@c")
describer(8, owner="nowhere")
gone = allocate("").data_ptr()
del kept[-1]
describer(gone, owner="of nobody any more")
importlib.reload(describe)
with describe.describer(owner="after a reload"), describer(owner="of before"):
    allocate("after a reload@of before")
allocate("")
