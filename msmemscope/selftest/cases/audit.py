"""Engines that sleep: what they give back, and what they forget."""

from __future__ import annotations

from typing import Any

from msmemscope.selftest.case import Expected, fault
from msmemscope.selftest.loops import place, train
from msmemscope.selftest.script import MIB, Process, Script
from msmemscope.vocabulary import Flag, Kind, Pool

WEIGHTS = place("engine.py:12 load_model", "engine.py:5 start")
CACHE = place("engine.py:30 allocate_cache", "engine.py:6 start")
FORGOTTEN = place("graphs.py:77 capture", "engine.py:7 start")
HOST = place("engine.py:50 offload", "engine.py:9 sleep")


def sleeps(rank: Process, *, forgets: int, weights: int = 256 * MIB, asks: bool = True) -> None:
    """Weights go to the host, the cache is given back, something is forgotten; then it wakes up."""
    kept = rank.alloc(weights, WEIGHTS)
    cache = rank.alloc(512 * MIB, CACHE)
    forgotten = rank.alloc(forgets, FORGOTTEN)
    rank.mark("sleep", asks=asks)
    rank.free(kept)
    rank.free(cache)
    copy = rank.on_host(weights, HOST, pinned=True)
    rank.wait(5)
    rank.mark("wake_up", asks=asks)
    rank.free(copy)
    again = [rank.alloc(weights, WEIGHTS), rank.alloc(512 * MIB, CACHE)]
    for block in (*again, forgotten):
        rank.free(block)


def survived(ranks: tuple[int, ...], size: int, **facts: Any) -> Expected:
    return Expected("survived", ranks=ranks, place="graphs.py:77", bytes=size, severity="warning", **facts)


@fault("audit", survived((0, 1), 2 * 96 * MIB, says=("96 MiB", "256 MiB lay on the host instead"), saving=2 * 96 * MIB))
def two_ranks_forget_a_graph(job: Script) -> None:
    for rank in job.ranks(2):
        train(rank)
        sleeps(rank, forgets=96 * MIB)


@fault("audit", survived((0,), 128 * MIB, says=("the worst of 3 times",)))
def the_second_sleep_of_three(job: Script) -> None:
    rank = job.rank()
    train(rank)
    for forgets in (MIB, 128 * MIB, 2 * MIB):
        sleeps(rank, forgets=forgets)


@fault("audit", survived((0,), 96 * MIB))
def marks_of_mstx(job: Script) -> None:
    rank = job.rank()
    train(rank)
    sleeps(rank, forgets=96 * MIB, asks=False)


@fault("audit", survived((0,), 96 * MIB))
def marks_with_names_of_their_own(job: Script) -> None:
    job.options = {"audit": {"between": "free_cache,use_cache"}}
    rank = job.rank()
    train(rank)
    forgotten = rank.alloc(96 * MIB, FORGOTTEN)
    rank.mark("free_cache", asks=True)
    rank.mark("use_cache", asks=True)
    rank.free(forgotten)


@fault("audit", Expected("survived", ranks=(0,), place="engine.py:30", bytes=100 * MIB))
def a_pool_that_sleeps_keeps_its_addresses(job: Script) -> None:
    """The handles behind the weights are released, those behind the cache are not."""
    rank = job.rank()
    train(rank)
    facts = {"pool": Pool.HAL, "device_type": rank.device_type, "device": rank.device}
    handles, blocks = [], []
    for stack in (WEIGHTS, CACHE):
        handle = rank.alloc(128 * MIB, stack, pool=Pool.HAL, flags=Flag.HANDLE)
        block = rank.alloc(100 * MIB, stack)
        rank.event(Kind.MAP, ptr=block.ptr, size=handle.size, attr=handle.ptr, **facts)
        handles.append(handle)
        blocks.append(block)
    rank.mark("sleep", asks=True)
    rank.event(Kind.UNMAP, ptr=blocks[0].ptr, **facts)
    rank.free(handles[0])
    rank.mark("wake_up", asks=True)


@fault("audit", Expected("gave_back", ranks=(0, 1), bytes=2 * 63 * MIB, says=("63 MiB",)))
def little_enough_survives(job: Script) -> None:
    for rank in job.ranks(2):
        train(rank)
        sleeps(rank, forgets=63 * MIB)


@fault("audit", Expected("gave_back", ranks=(0,), says=("256 MiB beside it were meant to",)))
def weights_are_meant_to_stay(job: Script) -> None:
    job.options = {"audit": {"keep": "weight"}}
    rank = job.rank()
    train(rank)
    with rank.label("weight"):
        kept = rank.alloc(256 * MIB, WEIGHTS)
    rank.mark("sleep", asks=True)
    rank.mark("wake_up", asks=True)
    rank.free(kept)


@fault("audit", Expected("survived", ranks=(0,), bytes=96 * MIB, severity="info", says=("not recorded on CUDA",)))
def on_cuda_nobody_can_be_sure(job: Script) -> None:
    rank = job.rank(device="cuda")
    train(rank)
    sleeps(rank, forgets=96 * MIB)
