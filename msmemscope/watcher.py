"""Upstream's msmemscope.watcher: blocks whose content is looked at before and after every operator.

In: a tensor, or an address and a length. Out: WATCH records, from which `msmemscope analyze RUN --only watch` says who
changed a block without saying so, and upstream's files of checksums or content (docs/watch.md).

Nothing is kept of the tensor but where its bytes lie. A watch ends with remove(), after `dump_nums` looks, or when the
memory is given back.
"""

from __future__ import annotations

import errno

from msmemscope.telling import tell

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

__all__ = ["remove", "watch"]

MOST_NAME = 64  # characters
NO_END = -1
_MOST_LOOKS = 2**62

_WHY = {
    errno.EEXIST: "another block is watched under this name: remove() that first, or choose another name",
    errno.EBUSY: "these bytes are watched already, under another name: remove() them first",
    errno.ENOSPC: "32 blocks are watched already: remove() one first",
    errno.ENOMEM: "there is no memory to look at it with",
    errno.EFAULT: "its memory cannot be read: nothing is there, or it is no memory of this process or its cards",
    errno.ENODEV: "its device is not recorded: name it in --device",
}


def watch(tensor_or_address: object, *, name: str, length: int | None = None, dump_nums: int = NO_END) -> None:
    """Watches a tensor, or `length` bytes from an address on, from now on.

    tensor_or_address: a tensor with memory of its own on the CPU, an NPU or a GPU, parameters and other subclasses
    included; of one whose elements do not lie together the bytes from its first element to its last. Or an address, as
    of `tensor.data_ptr()`, and its length in bytes. name: tells it apart in files and findings, at most 64 characters.
    dump_nums: after so many looks it ends; two belong to an operator, before and after it. -1: not before remove().

    Watching the same bytes again under the same name begins anew. What cannot be watched (an address without memory, a
    device that is not recorded, a name or bytes that are watched already, a 33rd block) is said on stderr, and the
    program goes on.

    Bytes past the end of their block on a card are another's: the watch ends where the block does, with a warning.

    Raises TypeError for other types, ValueError for a name, a length or a number of looks that is none, for a tensor
    without memory of its own (fake, meta, sparse, distributed), and for memory of a card that is given to nobody.
    """
    if not isinstance(name, str):
        raise TypeError(f"watch() takes a text as name; got {type(name).__name__}")
    if not 0 < len(name) <= MOST_NAME or not name.isprintable() or "," in name or '"' in name:
        raise ValueError(
            f"watch() takes a name of 1 to {MOST_NAME} characters without comma and quote; got {name!r:.80}"
        )
    if not isinstance(dump_nums, int) or isinstance(dump_nums, bool):
        raise TypeError(f"watch() takes a number as dump_nums; got {type(dump_nums).__name__}")
    if dump_nums != NO_END and dump_nums < 1:
        raise ValueError(f"watch() takes dump_nums from 1 on, or -1 for no end; got {dump_nums}")
    block = _block(tensor_or_address, length, "watch")
    from msmemscope import _native, joins_session
    from msmemscope.collect.rank.attach import look_at_blocks
    from msmemscope.collect.rank.bootstrap import own_imports

    with own_imports:
        joins_session()
        block.settle()
        looks = NO_END if dump_nums > _MOST_LOOKS else dump_nums
        error = _native.watch_block(block.ptr, block.bytes, block.storage, block.device_type, block.device, name, looks)
        if error:
            tell(f"Warning: {name!r} is not watched: {_WHY.get(error, errno.errorcode.get(error, str(error)))}")
        else:
            look_at_blocks()


def remove(tensor_or_address: object, *, length: int | None = None) -> None:
    """Ends the watch of a tensor, or of `length` bytes from an address on. One that is not watched (any more) is no
    error. Errors as watch()."""
    from msmemscope import _native

    block = _block(tensor_or_address, length, "remove")
    block.settle()
    _native.unwatch_block(block.ptr, block.bytes)


class _Block:
    """Bytes of a device. storage: where their block begins, or `ptr` where nobody knows."""

    def __init__(self, ptr: int, count: int, storage: int, module: Any, device_type: int, device: int) -> None:
        self.ptr = ptr
        self.bytes = count
        self.storage = storage
        self._module = module
        self.device_type = device_type
        self.device = device

    def settle(self) -> None:
        """Waits for what the program has asked of the device until now."""
        if self._module is not None:
            self._module.current_stream(self.device).synchronize()


def _block(tensor_or_address: object, length: object, function: str) -> _Block:
    import sys

    torch = sys.modules.get("torch")
    if torch is not None and isinstance(tensor_or_address, torch.Tensor):
        if length is not None:
            raise TypeError(f"{function}() takes a length only with an address")
        return _of_tensor(torch, tensor_or_address)
    if isinstance(tensor_or_address, bool) or not isinstance(tensor_or_address, int):
        given = type(tensor_or_address).__name__
        raise TypeError(f"{function}() takes a tensor, or an address and length=; got {given}")
    if length is None:
        raise TypeError(f"{function}() takes length=, in bytes, with an address")
    if isinstance(length, bool) or not isinstance(length, int):
        raise TypeError(f"{function}() takes a number of bytes as length; got {type(length).__name__}")
    if not 0 < tensor_or_address < 1 << 64:
        raise ValueError(f"{function}() takes an address from 1 on; got {tensor_or_address}")
    if not 0 < length <= (1 << 64) - tensor_or_address:
        raise ValueError(f"{function}() takes a length of at least one byte; got {length}")
    return _of_address(torch, tensor_or_address, length, is_begun=function == "watch")


def _of_tensor(torch: ModuleType, tensor: Any) -> _Block:
    import sys

    from msmemscope.vocabulary import DeviceType

    kinds = {"cpu": DeviceType.CPU, "npu": DeviceType.NPU, "cuda": DeviceType.CUDA}
    kind = tensor.device.type
    if kind not in kinds:
        raise ValueError(f"a tensor on {kind!r} has no memory that could be watched; those on cpu, npu and cuda have")
    fake = sys.modules.get("torch._subclasses.fake_tensor")
    if fake is not None and isinstance(tensor, fake.FakeTensor):
        raise ValueError("a FakeTensor without memory of its own cannot be watched")
    try:
        storage = tensor.untyped_storage()
        base, limit = storage.data_ptr(), storage.nbytes()
    except (RuntimeError, NotImplementedError) as error:
        reason = (str(error).splitlines() or [""])[0]
        raise ValueError(f"a {type(tensor).__name__} without memory of its own cannot be watched: {reason}") from None
    items = 0
    if all(tensor.shape):
        items = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    count = items * tensor.element_size()
    if not count:
        raise ValueError("a tensor without elements cannot be watched: it has no bytes")
    if not base:
        raise ValueError(
            f"a {type(tensor).__name__} without memory of its own cannot be watched (a wrapper of another tensor: "
            "watch that)"
        )
    start = tensor.storage_offset() * tensor.element_size()
    if start + count > limit:
        raise ValueError(f"the tensor's memory was taken away: its storage has {limit} bytes, it needs {start + count}")
    module = None if kind == "cpu" else getattr(torch, kind)
    return _Block(base + start, count, base, module, int(kinds[kind]), tensor.device.index or 0)


def _of_address(torch: ModuleType | None, address: int, length: int, *, is_begun: bool) -> _Block:
    """Of a card where torch's allocator says so, else of the host. is_begun: the watch; what is wrong is told then."""
    from msmemscope.vocabulary import DeviceType

    for kind, number in (("npu", DeviceType.NPU), ("cuda", DeviceType.CUDA)):
        module = getattr(torch, kind, None)
        if module is None or not getattr(module, "is_initialized", bool)():
            continue
        for segment in module.memory_snapshot():
            if not segment["address"] <= address < segment["address"] + segment["total_size"]:
                continue
            start = segment["address"]
            for block in segment["blocks"]:
                end = start + block["size"]
                if start <= address < end:
                    if is_begun and not block["state"].startswith("active"):  # one state is "inactive"
                        raise ValueError(f"address {address:#x} lies in memory of {kind} that is given to nobody")
                    if is_begun and address + length > end:
                        tell(
                            f"Warning: {length} bytes from {address:#x} on go past their block of {kind}: watched are "
                            f"the {end - address} up to its end"
                        )
                    return _Block(address, min(length, end - address), start, module, int(number), segment["device"])
                start = end
    return _Block(address, length, address, None, int(DeviceType.CPU), 0)
