"""Labels where contexts move between threads and event loops: prints size and owner, a line each, as described.py.

argv: pools, trio or uvloop. What is not promised is not allocated: under uvloop a task that waits within a label.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import torch

from msmemscope.describe import describer

kept = []
_size = 1000


def allocate(owner: str) -> None:
    """A tensor of a size that no other has; its owner is to be `owner`."""
    global _size
    _size += 1
    kept.append(torch.empty(_size, dtype=torch.uint8))
    print(_size, owner or "-", flush=True)


def own_label(outer: str) -> None:
    allocate("")
    with describer(owner="own"):
        allocate(f"{outer}@own".strip("@"))
        with describer(owner="inner"):
            allocate(f"{outer}@own@inner".strip("@"))
        allocate(f"{outer}@own".strip("@"))
    allocate("")


def pools() -> None:
    with ThreadPoolExecutor(1) as pool:
        with describer(owner="around"):
            pool.submit(allocate, "").result()
            pool.submit(own_label, "").result()
            allocate("around")
        pool.submit(allocate, "").result()

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(1))
        with describer(owner="task"):
            await asyncio.to_thread(own_label, "task")
            allocate("task")
            await loop.run_in_executor(None, own_label, "")
        await asyncio.to_thread(allocate, "")
        allocate("")

    asyncio.run(main())

    def generator() -> Iterator[int]:
        with describer(owner="within"):
            allocate("within")
            yield 1
            allocate("within")

    for _ in generator():
        allocate("within")  # the block is not left while the generator waits
    allocate("")


def on_trio() -> None:
    import trio

    @describer(owner="function")
    async def function() -> None:
        for _ in range(3):
            allocate("outside@function")
            await trio.lowlevel.checkpoint()

    async def block() -> None:
        for _ in range(3):
            with describer(owner="block"):
                allocate("outside@block")
                await trio.lowlevel.checkpoint()
                allocate("outside@block")
            allocate("outside")

    async def nobody() -> None:
        for _ in range(6):
            allocate("outside")
            await trio.lowlevel.checkpoint()

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            for task in (function, block, nobody, block):
                nursery.start_soon(task)
        await trio.to_thread.run_sync(own_label, "outside")

    for _ in range(2):
        with describer(owner="outside"):
            trio.run(main)
            allocate("outside")
        allocate("")


def on_uvloop() -> None:
    import uvloop

    async def block(name: str) -> None:
        for _ in range(3):
            with describer(owner=name):
                allocate(name)
            await asyncio.sleep(0)

    async def main() -> None:
        await asyncio.gather(block("one"), block("other"))
        allocate("")
        with describer(owner="waits"):
            allocate("waits")
            await asyncio.sleep(0)
            with describer(owner="inner"):
                allocate("waits@inner")
            allocate("waits")
        allocate("")

    uvloop.run(main())
    allocate("")


{"pools": pools, "trio": on_trio, "uvloop": on_uvloop}[sys.argv[1]]()
