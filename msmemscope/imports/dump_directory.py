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

from msmemscope.errors import InputError, MemscopeError, UsageError
from msmemscope.imports.external_sort import Sorter
from msmemscope.imports.same_rows import Sketch, Sketches
from msmemscope.imports.upstream_events import home_of, rank_of
from msmemscope.imports.upstream_files import files_below
from msmemscope.text import counted
from msmemscope.vocabulary import DeviceType

Found = TypeVar("Found")


@dataclass
class Others:
    """Files, and their rows by their places in `paths`."""

    paths: list[Path] = field(default_factory=list)
    rows: Sketches = field(default_factory=Sketches)


@dataclass(frozen=True)
class OneOfSeveral:
    """A file of a directory. name: below the directory; rank: that its path tells."""

    path: Path
    name: str
    rank: int | None
    others: Others
    """Those of the same process's directory, as far as they were checked."""
    rows: Sketch = field(default_factory=Sketch)

    def refuse_copy(self) -> None:
        """Raises InputError where one of the others has some of its rows. To be called when all are in `rows`, and
        before anything is told or written."""
        if (both := self.others.rows.common(self.rows)) is not None:
            other, pid, id = both
            raise InputError(f"{self.path}: {self.others.paths[other]} has the row with ID {id} of process {pid}, too")
        self.others.paths.append(self.path)
        self.others.rows.add(self.rows)


def each_file(
    directory: Path, tell: Callable[[str], None], check: Callable[[Path, OneOfSeveral], Found]
) -> Iterator[Found]:
    """Raises InputError where none of its files can be used."""
    paths = files_below(directory)
    known: dict[Path, Others] = {}  # by the directory of their processes
    skipped = 0
    for path in paths:
        others = known.setdefault(home_of(path), Others())
        one = OneOfSeveral(path, str(path.relative_to(directory)), rank_of(path), others)
        try:
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
    tell(f"{counted(done, 'file')} checked" + (f", {skipped:,} skipped" if skipped else ""))


@contextmanager
def row_spool(directory: Path, keys: Sequence[str], path: Path) -> Iterator[Sorter]:
    """Rows that are sorted on disk, in a file without a name. OSError, which names `path`, when there is no room."""
    with no_room_told(directory, path), Sorter(directory, keys) as rows:
        yield rows


@contextmanager
def no_room_told(directory: Path, path: Path) -> Iterator[None]:
    """Of what waits in `directory`: OSError, which names `path`, when there is no room."""
    try:
        yield
    except (InputError, UsageError):
        raise
    except MemscopeError:
        raise OSError(errno.ENOSPC, f"no room in {directory} to sort the rows", str(path)) from None
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), str(path)) from None


def device_id(device_type: int, device: int) -> str:
    """As upstream's files name it: "0", "cpu"; "N/A" for none."""
    return "cpu" if device_type == DeviceType.CPU else str(device) if device_type != DeviceType.NONE else "N/A"
