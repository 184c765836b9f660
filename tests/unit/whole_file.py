"""A whole file of upstream's at once: what the pieces of a RowFile hold, one behind the other."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from msmemscope.imports.upstream_files import Columns, Definitions, RowFile


@dataclass(frozen=True)
class Rows:
    path: Path
    columns: Columns
    definitions: Definitions
    left_out: int
    first_left_out: str
    derived: int


def read_rows(path: Path) -> Rows:
    file = RowFile(path)
    pieces = list(file.pieces())
    columns = {name: np.concatenate([piece.columns[name] for piece in pieces]) for name in pieces[0].columns}
    definitions = {
        kind: {name: b"".join(piece.definitions[kind][name] for piece in pieces) for name in of_kind}
        for kind, of_kind in pieces[0].definitions.items()
    }
    return Rows(path, columns, definitions, file.left_out, file.first_left_out, file.derived)
