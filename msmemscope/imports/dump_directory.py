"""The offline checks of a directory of upstream's files: one after the other, each by itself.

In: a directory, at any depth of which the files of processes, ranks and devices lie, and a check of one file. Out: what
it says of each. What cannot be used is skipped, said and counted: a file that is no memscope_dump, and one whose rows
another file of the same process has, which may be its db beside its csv.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from msmemscope.errors import InputError, MemscopeError
from msmemscope.imports.external_sort import Sorter
from msmemscope.imports.same_rows import Sketch
from msmemscope.imports.upstream_events import home_of, rank_of
from msmemscope.imports.upstream_files import files_below
from msmemscope.vocabulary import DeviceType

Found = TypeVar("Found")


@dataclass(frozen=True)
class OneOfSeveral:
    """A file of a directory. name: below the directory; rank: that its path tells."""

    path: Path
    name: str
    rank: int | None
    others: list[tuple[Path, Sketch]]
    """Those of the same process's directory, as far as they were checked."""
    rows: Sketch = field(default_factory=Sketch)

    def refuse_copy(self) -> None:
        """Raises InputError where one of the others has some of its rows. To be called when all are in `rows`, and
        before anything is told or written."""
        for other, known in self.others:
            if both := known.common(self.rows):
                raise InputError(f"{self.path}: {other} has the row with ID {both[1]} of process {both[0]}, too")
        self.others.append((self.path, self.rows))


def each_file(
    directory: Path, most_bytes: int, tell: Callable[[str], None], check: Callable[[Path, OneOfSeveral], Found]
) -> Iterator[Found]:
    """Raises InputError where none of its files can be used."""
    paths = files_below(directory)
    known: dict[Path, list[tuple[Path, Sketch]]] = {}  # by the directory of their processes
    skipped = 0
    for path in paths:
        others = known.setdefault(home_of(path), [])
        one = OneOfSeveral(path, str(path.relative_to(directory)), rank_of(path), others)
        try:
            if path.stat().st_size > most_bytes:
                raise InputError(f"{path}: it is larger than {most_bytes >> 30} GiB")
            found = check(path, one)
        except (InputError, OSError) as error:
            if isinstance(error, OSError) and error.errno == errno.ENOSPC:
                raise  # there is none for the others, either
            skipped += 1
            tell(f"WARNING: skipped: {error}")
            continue
        yield found
    if skipped == len(paths):
        raise InputError(f"{directory}: none of its {len(paths):,} files can be used")
    done = len(paths) - skipped
    tell(f"{done:,} file{'' if done == 1 else 's'} checked" + (f", {skipped:,} skipped" if skipped else ""))


@contextmanager
def row_spool(directory: Path, keys: Sequence[str], path: Path) -> Iterator[Sorter]:
    """Rows that are sorted on disk, in a file without a name. OSError, which names `path`, when there is no room."""
    try:
        with Sorter(directory, keys) as rows:
            yield rows
    except InputError:
        raise
    except MemscopeError:
        raise OSError(errno.ENOSPC, f"no room in {directory} to sort the rows", str(path)) from None
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), str(path)) from None


def device_id(device_type: int, device: int) -> str:
    """As upstream's files name it: "0", "cpu"; "N/A" for none."""
    return "cpu" if device_type == DeviceType.CPU else str(device) if device_type != DeviceType.NONE else "N/A"
