"""What is read of an object of the program: its class, its attributes, which builtin container it is.

No attribute is read through the object's own class, which may answer with a property; nothing is compared, hashed or
printed by the object's own methods. What is read is types, plain dictionaries, slots, and fields of the interpreter's
own types.
"""

from __future__ import annotations

from collections import deque
from types import GetSetDescriptorType, MemberDescriptorType

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

CONTAINERS = (list, dict, set, frozenset, tuple, deque)

classes_of = type.__dict__["__mro__"].__get__
space_of_class = type.__dict__["__dict__"].__get__
name_of_class = type.__dict__["__name__"].__get__


def class_name(instance: object) -> str:
    """The name of its class."""
    return str(name_of_class(type(instance)))


def space_of(instance: object) -> dict[str, object] | None:
    """The dictionary of an instance's attributes."""
    for one in classes_of(type(instance)):
        found = space_of_class(one).get("__dict__")
        if type(found) is GetSetDescriptorType:
            space = found.__get__(instance)
            return space if type(space) is dict else None
    return None


def key_of(space: dict[object, object], value: object) -> str | None:
    """The name under which a dictionary has this very object; None where it is no text."""
    for key, one in list(dict.items(space)):
        if one is value:
            return key if type(key) is str else None
    return None


def attribute_of(instance: object, value: object) -> str | None:
    """The attribute of the instance that is this very object."""
    space = space_of(instance)
    if space is not None and (name := key_of(space, value)) is not None:  # type: ignore[arg-type]
        return name
    return next((name for name, one in _in_slots(instance) if one is value), None)


def is_a(instance: object, base: type) -> bool:
    """isinstance() that asks nobody."""
    return any(one is base for one in classes_of(type(instance)))


def base_of(instance: object) -> type | None:
    """Which of CONTAINERS it is."""
    return next((one for one in CONTAINERS if is_a(instance, one)), None)


def attributes_of(instance: object) -> Iterator[tuple[str, object]]:
    """Its names and values, of its dictionary and its slots."""
    for name, value in list(dict.items(space_of(instance) or {})):
        if type(name) is str:
            yield name, value
    yield from _in_slots(instance)


def attributes_of_class(cls: type) -> Iterator[tuple[str, object]]:
    """Names and values that its instances see through it; what a class has says more than what its bases have."""
    for one in reversed(classes_of(cls)):
        yield from list(space_of_class(one).items())  # other threads may add to a class meanwhile


def _in_slots(instance: object) -> Iterator[tuple[str, object]]:
    for one in classes_of(type(instance)):
        for name, slot in list(space_of_class(one).items()):  # other threads may add to a class meanwhile
            if type(slot) is MemberDescriptorType:
                try:
                    yield str(name), slot.__get__(instance)
                except AttributeError:  # it holds nothing
                    continue
