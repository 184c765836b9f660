"""Sees torch's operators without a compiler: a TorchDispatchMode that tells of each operator what the observer tells.

In: every operator of the threads that have the mode. Out: the same records, at several times the cost.
"""

from __future__ import annotations

import sys

from msmemscope import _native
from msmemscope.collect.rank.access_rules import NONE, READ, WRITE, WRITE_IF_FLAG, Rules, rules_of
from msmemscope.vocabulary import DeviceType

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType
    from typing import Any

    from msmemscope._native import Touched

_DEVICE_TYPES = {"cpu": DeviceType.CPU, "npu": DeviceType.NPU, "cuda": DeviceType.CUDA}
_COMPOSITE = "CompositeImplicitAutograd"
_UNOBSERVED = "profiler"  # what torch itself does not show to an observer
_LOOKS = 16  # of wanted_of_operators(): watched blocks are looked at
_KERNELS = ("CPU", "CUDA", "PrivateUse1")

_entered: list[Any] = []


def enter(torch: ModuleType) -> None:
    """Pushes the mode on this thread, for the life of the process."""
    mode = make_mode(torch)
    mode.__enter__()
    _entered.append(mode)


def leave() -> None:
    """Pops it again."""
    while _entered:
        _entered.pop().__exit__(None, None, None)


def make_mode(torch: Any) -> Any:
    base = sys.modules["torch.utils._python_dispatch"].TorchDispatchMode
    plans: dict[Any, Rules | None] = {}
    inplace_view = torch.Tag.inplace_view
    nobody = torch.Tensor.__torch_dispatch__  # of a class that does not answer
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    graph_task = torch._C._current_graph_task_id  # -1: autograd runs nothing on this thread

    def is_tracing() -> bool:
        """Whether a FakeTensorMode or the like comes after this mode: nothing runs."""
        return bool(torch._C._len_torch_dispatch_stack() > 0)

    def plan_of(operator: Any) -> Rules | None:
        name = operator.name()
        marks = [one.alias_info for one in operator._schema.returns]
        may_return_view = any(mark is not None and not mark.is_write for mark in marks)
        if has_kernel(name, _COMPOSITE) and (may_return_view or not any(has_kernel(name, key) for key in _KERNELS)):
            return None
        return rules_of(operator, inplace_view in operator.tags)

    class Operators(base):  # type: ignore[misc,valid-type]
        def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = kwargs or {}
            if is_tracing() or operator.namespace == _UNOBSERVED:
                return operator(*args, **kwargs)
            if any(kind.__torch_dispatch__ is not nobody for kind in types):  # it answers, and what it calls comes here
                return NotImplemented
            wanted = _native.wanted_of_operators()
            if wanted == 0:
                return operator(*args, **kwargs)
            if operator not in plans:
                plans[operator] = plan_of(operator)
            plan = plans[operator]
            if plan is None:  # in inference mode it comes here whole; what it calls is seen
                with self:
                    return operator.decompose(*args, **kwargs)
            call = _Call(torch, plan, args, kwargs)
            if not call.is_real:
                return operator(*args, **kwargs)
            if wanted & _LOOKS:
                wait_for_stream(torch, b"", call.device_type, call.device)
            running = _native.operator_began(plan.name, call.device_type, call.device, graph_task() != -1, call.touched)
            returned: list[Touched] = []
            try:
                result = operator(*args, **kwargs)
                returned = call.returned(result)
                if group := call.group():
                    _native.operator_is_collective(running, *group)
            finally:
                if wanted & _LOOKS:
                    wait_for_stream(torch, running, call.device_type, call.device)
                _native.operator_ended(running, returned)
            return result

    return Operators()


class _Call:
    """One call: what it is given, and where it runs."""

    def __init__(self, torch: Any, plan: Rules, args: Any, kwargs: Any) -> None:
        self._torch = torch
        self._plan = plan
        self._storages: set[int] = set()
        self.touched: list[Touched] = []
        self.device_type, self.device = int(DeviceType.CPU), -1
        self._group: Any = None
        has_real = has_unreal = False
        values = {name: value for (name, _), value in zip(plan.arguments, args, strict=False)} | kwargs
        if plan.group:
            self._group = values.get(plan.group)
        for name, rule in plan.arguments:
            access = (WRITE if values.get(plan.flag) is True else READ) if rule == WRITE_IF_FLAG else rule
            for tensor in tensors_of(torch, values.get(name)):
                one = touched_by(tensor, access)
                if one is None:
                    has_unreal = True
                    continue
                has_real = True
                if self.device < 0 or self.device_type == DeviceType.CPU:
                    self.device_type, self.device = one[8], one[9]
                if one[2] and access != NONE:
                    self.touched.append(one)
                    self._storages.add(one[1])
        self.is_real = has_real or not has_unreal
        if self.is_real and self.device_type == DeviceType.CPU:
            self.is_real = self._has_options_device(values) or has_real

    def group(self) -> tuple[str, int, int] | None:
        """Of a collective that has been started: name, the backend's sequence number (0: it has none), ranks."""
        if self._group is None:
            return None
        distributed = self._torch.distributed
        try:
            if isinstance(self._group, self._torch.ScriptObject):
                group = distributed.ProcessGroup.unbox(self._group)
            elif isinstance(self._group, str):
                group = distributed.distributed_c10d._resolve_process_group(self._group)
            else:
                group = self._group
            name, ranks = str(group.group_name), int(group.size())
            kind = next(kind for kind, number in _DEVICE_TYPES.items() if number == self.device_type)
            try:
                sequence = int(group._get_backend(self._torch.device(kind))._get_sequence_number_for_group())
            except RuntimeError:
                sequence = 0
        except (AttributeError, RuntimeError, TypeError):  # another torch's: the operator is recorded all the same
            return None
        return name, sequence, ranks

    def returned(self, result: Any) -> list[Touched]:
        several = isinstance(result, (tuple, list)) and len(self._plan.returns) > 1
        touched = []
        for value, access in zip(result if several else (result,), self._plan.returns, strict=False):
            if access == NONE:
                continue
            for tensor in tensors_of(self._torch, value):
                one = touched_by(tensor, access)
                if one is not None and one[2] and one[1] not in self._storages:
                    touched.append(one)
        return touched

    def _has_options_device(self, values: dict[str, Any]) -> bool:
        """A call runs where its options say, when its tensors are on no card: a copy to one, say. False: where there is
        no memory."""
        device = values.get("device")
        if device is None:
            self.device = 0
            return True
        device = self._torch.device(device)
        if device.type not in _DEVICE_TYPES:
            return False
        self.device_type = int(_DEVICE_TYPES[device.type])
        self.device = device.index if device.index is not None else self._current(device.type)
        return True

    def _current(self, kind: str) -> int:
        module = getattr(self._torch, kind, None)
        current = getattr(module, "current_device", None)
        return int(current()) if kind != "cpu" and current is not None else 0


def tensors_of(torch: Any, value: Any) -> Iterator[Any]:
    """Those of an argument or a result."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from tensors_of(torch, one)


def wait_for_stream(torch: Any, running: bytes, device_type: int, device: int) -> None:
    """Before operator_began() (running: empty) and operator_ended(): watched blocks are looked at when what the
    device's current stream was asked for is done."""
    if _native.operator_waits(running, device_type, device):
        module = torch.npu if device_type == DeviceType.NPU else torch.cuda
        try:
            module.current_stream(device).synchronize()
        except RuntimeError:  # a failure of the program's own, which it meets where it waits itself
            return


def touched_by(tensor: Any, access: int) -> Touched | None:
    """As operator_began() takes it. None: it has no memory though it has elements, or none that can be told (fake,
    meta, sparse)."""
    kind = _DEVICE_TYPES.get(tensor.device.type)
    if kind is None:
        return None
    try:
        storage = tensor.untyped_storage()
        base = storage.data_ptr()
    except (RuntimeError, NotImplementedError):
        return None
    size = tensor.element_size()
    total = tensor.numel() * size
    if base == 0 and total:
        return None
    dtype = tensor.dtype
    index = tensor.device.index or 0
    number = _dtypes.setdefault(dtype, 1000 + len(_dtypes))
    address = base + tensor.storage_offset() * size
    shape = list(tensor.shape)
    # A write that is not confined to where its elements would lie together.
    span = 1 + sum((count - 1) * stride for count, stride in zip(shape, tensor.stride(), strict=True))
    spread = span != tensor.numel()
    return (address, base, total, storage.nbytes(), shape, str(dtype), number, access, int(kind), index, spread)


_dtypes: dict[Any, int] = {}
