"""How the program writes the way from one of its objects to another: `["losses"]`, `.buffer.items`, `["loss"][3]`.

In: an object and what holds it. Out: what stands behind the name of the holder to reach it; None where no such
expression is known, as of what lies in a set. Nothing of the program runs: see object_fields.py.
"""

from __future__ import annotations

from collections import deque
from math import isfinite

from msmemscope.collect.rank.object_fields import attribute_of, base_of, space_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

_LONGEST_KEY = 40  # characters
_LARGEST_KEY = 1 << 64  # the text of a larger number takes long, and Python may refuse to make it
_LONGEST_TUPLE = 4
_MOST_ENTRIES = 10_000  # of a container in which a place is looked for


def way_through(holders: Sequence[object], thing: object) -> str | None:
    """What leads to `thing` from the first of `holders`, each of which holds the next one; "" for no holder."""
    text = ""
    chain = [*holders, thing]
    at = 0
    while at + 1 < len(chain):
        holder, held = chain[at], chain[at + 1]
        if at + 2 < len(chain) and type(held) is dict and base_of(holder) is None and space_of(holder) is held:
            held = chain[at + 2]  # the dictionary of its attributes
            at += 1
        piece = _step_to(holder, held)
        if piece is None:
            return None
        text += piece
        at += 1
    return text


def _step_to(holder: object, held: object) -> str | None:
    base = base_of(holder)
    if base is dict:
        return _by_key(holder, held)
    if base in (list, tuple, deque):
        return _by_place(holder, held)
    name = attribute_of(holder, held) if base is None else None
    return None if name is None else f".{name}"


def _by_key(space: object, held: object) -> str | None:
    if dict.__len__(space) > _MOST_ENTRIES:  # type: ignore[arg-type]
        return None
    entries: list[tuple[object, object]] = list(dict.items(space))  # type: ignore[arg-type]
    for key, value in entries:
        if value is held:
            return f"[{_key(key)}]"
    return None


def _by_place(several: object, held: object) -> str | None:
    base = base_of(several)
    if base is None or base.__len__(several) > _MOST_ENTRIES:  # type: ignore[attr-defined]
        return None
    for place, value in enumerate(list(base.__iter__(several))):  # type: ignore[attr-defined]
        if value is held:
            return f"[{place}]"
    return None


def _key(key: object) -> str:
    """As the program writes it, where it is a text, a number or several; what else it may be is not asked."""
    if type(key) is not tuple:
        return _word(key)
    if not 0 < len(key) <= _LONGEST_TUPLE:
        return "..." if key else "()"
    return ", ".join(map(_word, key)) + ("," if len(key) == 1 else "")


def _word(one: object) -> str:
    if type(one) is str:
        text = one if len(one) <= _LONGEST_KEY else f"{one[: _LONGEST_KEY - 3]}..."
        text = text.replace("\\", "\\\\").replace('"', '\\"')
        return f'"{text}"' if text.isprintable() else "..."
    if type(one) is int:
        return str(one) if -_LARGEST_KEY < one < _LARGEST_KEY else "..."
    if type(one) is float:
        return str(one) if isfinite(one) else "..."
    return str(one) if type(one) is bool or one is None else "..."
