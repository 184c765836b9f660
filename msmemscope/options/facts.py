"""A frozen record without the standard library's dataclasses, whose import costs a rank more than all options.

In: the annotated fields of a subclass. Out: keyword constructor, equality, hash, repr and `as_dict()`.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing_extensions import Self, dataclass_transform
else:

    def dataclass_transform(**_kwargs):
        return lambda cls: cls


@dataclass_transform(kw_only_default=True, frozen_default=True)
class Facts:
    """A frozen record of its class's annotated fields: keyword arguments, equality, hash and repr."""

    def __init__(self, **values: object) -> None:
        cls = type(self)
        for name in cls.__annotations__:
            if name not in values and not hasattr(cls, name):
                raise TypeError(f"{cls.__name__}() needs {name}=")
            object.__setattr__(self, name, values.pop(name, getattr(cls, name, None)))
        if values:
            raise TypeError(f"{cls.__name__}() has no field {next(iter(values))!r}")

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{type(self).__name__} is frozen: use replaced({name}=...)")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"{type(self).__name__} is frozen")

    def replaced(self, **changes: object) -> Self:
        """A copy with these fields changed."""
        values = {name: getattr(self, name) for name in type(self).__annotations__}
        return type(self)(**{**values, **changes})

    def as_dict(self) -> dict[str, object]:
        """Field name → value, in order of declaration; tuples become lists and records become dicts."""
        return {name: _plain(getattr(self, name)) for name in type(self).__annotations__}

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and self.as_dict() == other.as_dict()

    def __hash__(self) -> int:
        return hash(tuple(getattr(self, name) for name in type(self).__annotations__))

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={getattr(self, name)!r}" for name in type(self).__annotations__)
        return f"{type(self).__name__}({fields})"


def _plain(value: object) -> object:
    if isinstance(value, Facts):
        return value.as_dict()
    return list(value) if isinstance(value, tuple) else value
