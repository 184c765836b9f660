"""Upstream's msmemscope.watcher: checksums of a block's content. Does nothing in this version: later.py."""

from __future__ import annotations

from msmemscope.later import not_yet

__all__ = ["remove", "watch"]


def watch(tensor_or_address: object, *, name: str, length: int | None = None, dump_nums: int = -1) -> None:
    """Watches a tensor, or `length` bytes from an address on. Not in this version: warns once."""
    not_yet("watcher.watch")


def remove(tensor_or_address: object, *, length: int | None = None) -> None:
    """Ends the watch. Not in this version: warns once."""
    not_yet("watcher.remove")
