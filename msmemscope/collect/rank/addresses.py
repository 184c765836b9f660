"""Where tensors lie.

In: tensors, and containers of them. Out: addresses of their first bytes. Holds none of them, and asks for addresses in
the way that does not make a copy-on-write tensor take its copy.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Any

DEEPEST = 4  # containers within containers that are looked into
MOST_ENTRIES = 1 << 16  # of one container


def address_of(tensor: object) -> int | None:
    """Its address; 0: it has no memory; None: it is no tensor."""
    torch: Any = sys.modules.get("torch")
    if torch is None or not isinstance(tensor, torch.Tensor):
        return None
    return next(addresses((tensor,)), 0)


def addresses(tensors: Iterable[Any]) -> Iterator[int]:
    """Those of tensors that have memory, of a DTensor its local part's. None among them is passed over."""
    torch: Any = sys.modules["torch"]
    of: Callable[[Any], int] = getattr(torch._C, "_data_address", None) or torch.Tensor.data_ptr
    plain = (torch.Tensor, torch.nn.Parameter)
    for tensor in tensors:
        if tensor is None:
            continue
        if type(tensor) not in plain:
            tensor = getattr(tensor, "_local_tensor", tensor)  # of a DTensor
        try:
            address = of(tensor)
        except (RuntimeError, NotImplementedError, TypeError):  # without storage: sparse, fake, functional
            continue
        if address:
            yield address


def tensors_in(value: object, depth: int = DEEPEST) -> list[Any]:
    """Tensors among the values of dicts, lists and tuples, however nested, to a depth."""
    found: list[Any] = []
    _collect(value, depth, sys.modules["torch"].Tensor, found)
    return found


def _collect(value: object, depth: int, tensor: type, found: list[Any]) -> None:
    if isinstance(value, dict):
        value = list(value.values())
    elif not isinstance(value, (list, tuple)):
        value = (value,)
    for one in value[:MOST_ENTRIES]:
        if isinstance(one, tensor):
            found.append(one)
        elif depth and isinstance(one, (dict, list, tuple)):
            _collect(one, depth - 1, tensor, found)
