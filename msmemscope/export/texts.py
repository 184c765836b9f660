"""The texts in upstream's rows, as a cell of CSV or of a database wants them.

In: ids of strings and stacks of a run. Out: the bytes that the native rows put into a cell. Each text is made once and
kept there. Upstream's files are kept to the letter except where they were broken: texts are quoted properly, JSON
values are escaped, and cells that a spreadsheet would run as a formula are made harmless.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from msmemscope._kernel import TEXT_FORMS, RowTexts
from msmemscope.analysis.frames import is_tool_file
from msmemscope.analysis.owners import root_text
from msmemscope.export.selection import NOT_APPLICABLE
from msmemscope.tables.run import stack_text
from msmemscope.text import harmless, plain

KEPT_BYTES = 64 << 20  # of texts, by one thread: stacks repeat endlessly


class Lookup(Protocol):
    """What the rows need of a run: texts and stacks behind the ids."""

    def string(self, id: int, /) -> str: ...

    def stack(self, id: int, /) -> tuple[Any, ...]: ...


class CsvDialect:
    """RFC 4180, with the quotes where upstream has them: mstx names, Attr and stacks always, others when needed."""

    def pair(self, key: str, value: str) -> str:
        return f",{key}:{self.value(value)}"

    def value(self, text: str) -> str:
        return plain(text).replace('"', '""')

    def name(self, text: str, quoted: bool) -> str:
        text = harmless(plain(text))
        return _quoted(text) if quoted or any(c in text for c in ',"') else text

    def stack(self, text: str) -> str:
        return _quoted(harmless(text)) if text else ""


class JsonDialect:
    """The .db file: Attr is a JSON object whose values are all texts; nothing else needs quoting in a database."""

    def pair(self, key: str, value: str) -> str:
        return f',"{key}":"{self.value(value)}"'

    def value(self, text: str) -> str:
        return json.dumps(text, ensure_ascii=False)[1:-1]

    def name(self, text: str, quoted: bool) -> str:  # noqa: ARG002 (as CsvDialect's)
        return text

    def stack(self, text: str) -> str:
        return text


Dialect = CsvDialect | JsonDialect


class TextSource:
    """What RowTexts asks: (form, id) -> bytes. The forms are listed in native/kernel/upstream_rows.h."""

    def __init__(
        self,
        lookup: Lookup,
        dialect: Dialect,
        stack_depth: int | None = None,
        owners: Mapping[int, str] | None = None,
    ) -> None:
        """`stack_depth`: innermost frames shown per stack; None shows all of them, 0 leaves the cells empty. owners:
        by number (row_facts.py), to which some may be added before rows name them."""
        self._owners = {} if owners is None else owners
        self._lookup = lookup
        self._dialect = dialect
        self._depth = stack_depth
        by_name: dict[str, Callable[[int], str]] = {
            "NAME": lambda id: dialect.name(lookup.string(id) or NOT_APPLICABLE, quoted=False),
            "MARK": lambda id: dialect.name(lookup.string(id), quoted=True),
            "VALUE": lambda id: dialect.value(lookup.string(id)),
            "PAIRS": lambda id: self._pairs(lookup.string(id)),
            "PATH": lambda id: self._path(lookup.string(id)),
            "STACK": self._stack,
            "OWNER": lambda id: dialect.value(self._owners[id] if id in self._owners else root_text(id)),
        }
        self._makers = {number: by_name[name] for name, number in TEXT_FORMS.items()}

    def __call__(self, form: int, id: int) -> bytes:
        # A file name may hold bytes that are no UTF-8; they reach us as surrogates.
        return self._makers[form](id).encode("utf-8", "replace")

    def _pairs(self, text: str) -> str:
        return "".join(self._dialect.pair(key, value) for key, value in split_pairs(text))

    def _path(self, text: str) -> str:
        return self._pairs(text if not text or split_pairs(text) else f"path:{text}")

    def _stack(self, id: int) -> str:
        if self._depth == 0:
            return ""
        frames = [frame for frame in self._lookup.stack(id) if not is_tool_file(frame.file)]
        return self._dialect.stack(stack_text(frames[: self._depth]))


def row_texts(
    lookup: Lookup, file_format: str, stack_depth: int | None, owners: Mapping[int, str] | None = None
) -> RowTexts:
    """The texts of one thread that writes rows. owners: see TextSource."""
    dialect = JsonDialect() if file_format == "db" else CsvDialect()
    return RowTexts(TextSource(lookup, dialect, stack_depth, owners), KEPT_BYTES)


def split_pairs(text: str) -> list[tuple[str, str]]:
    """`k:v,k:v` as pairs. A comma belongs to the value unless an identifier and a colon follow it."""
    starts = list(re.finditer(r"(?:^|,)(\w+):", text))
    ends = [*(match.start() for match in starts), len(text)][1:]
    return [(match[1], text[match.end() : end]) for match, end in zip(starts, ends, strict=True)]


def _quoted(text: str) -> str:
    return '"' + text.replace('"', '""') + '"'
