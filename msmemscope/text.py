"""Text that somebody else chose, made safe to show: names of programs, hosts, functions, marks.

Escape sequences in them would drive the reader's terminal, line breaks would fake lines of a report, and marks of
direction would show another text than the one that is there. The tables keep every text as it was recorded; whatever
reads them (tables.py) and whatever prints a line of its own passes it through here.
"""

from __future__ import annotations


def plain(text: str) -> str:
    r"""`text` with every character that is not printable, or a space other than U+0020, as \xNN, \uNNNN or \UNNNNNNNN.

    >>> plain("\x1b]0;owned\x07.py")
    '\\x1b]0;owned\\x07.py'
    """
    return text if text.isprintable() else "".join(c if c.isprintable() else _escaped(c) for c in text)


def counted(number: int, noun: str, several: str = "") -> str:
    """A number and what it counts, with a verb where one follows: as English has it for one and for several.

    >>> counted(1, "block"), counted(2000, "block"), counted(0, "line grows", "lines grow")
    ('1 block', '2,000 blocks', '0 lines grow')
    """
    return f"{number:,} {noun if number == 1 else several or noun + 's'}"


LONGEST_HOST = 64
"""Characters of a host's name within a line: as many as Linux lets one have."""


def host_text(name: str) -> str:
    """A host's name within a line of a report; of a run that somebody else made it may be of any length.

    >>> host_text("node" * 40)[-6:]
    'denod…'
    """
    return name if len(name) <= LONGEST_HOST else f"{name[: LONGEST_HOST - 1]}…"


def plain_json(value: object) -> object:
    """A decoded JSON document with each of its texts, keys too, made plain."""
    if isinstance(value, str):
        return plain(value)
    if isinstance(value, list):
        return [plain_json(item) for item in value]
    if isinstance(value, dict):
        return {plain(key): plain_json(item) for key, item in value.items()}
    return value


def harmless(text: str) -> str:
    """A cell that begins with = + - @ is run as a formula by spreadsheets; a leading apostrophe makes it text."""
    return f"'{text}" if text[:1] in ("=", "+", "-", "@") and text else text


def _escaped(c: str) -> str:
    code = ord(c)
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
