"""Types of fields as data: what a record that was read from a file may hold, by the annotations of its class.

Standard library alone: options are read inside a rank too. The classes have `from __future__ import annotations`, so an
annotation is a text.
"""

from __future__ import annotations


def is_of(value: object, annotation: str) -> bool:
    """Whether a value read from a file is of the type that a field's annotation names. Numbers: 64 bits at most."""
    if " | " in annotation:
        return any(is_of(value, one) for one in annotation.split(" | "))
    if annotation.startswith("tuple["):
        inner = annotation.removeprefix("tuple[").removesuffix(", ...]")
        return isinstance(value, (tuple, list)) and all(is_of(item, inner) for item in value)
    if annotation.startswith("dict["):
        inner = annotation.removesuffix("]").partition(", ")[2]
        return isinstance(value, dict) and all(is_of(key, "str") and is_of(item, inner) for key, item in value.items())
    if annotation == "int":
        return type(value) is int and -(2**63) <= value < 2**63
    kinds = {"str": str, "bool": bool, "None": type(None), "object": object}
    return annotation in kinds and isinstance(value, kinds[annotation])
