"""docs/formats.md knows every file of cluster/, every column in it, and every key of summary.json."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from fake_run import leaky_job

from msmemscope.analysis.registry import OWN
from msmemscope.report.analysed import analyse

PAGE = Path(__file__).parents[2] / "docs/formats.md"


def section_of(file: str) -> str:
    """What the page says below the heading of a file."""
    (found,) = (
        part for part in PAGE.read_text().split("\n## ") if f"cluster/{file}" in part.partition("\n")[0].split(", ")
    )
    return found


@pytest.mark.parametrize(
    ("name", "columns"), [(name, columns) for one in OWN for name, columns in one.files.items()], ids=str
)
def test_every_column_of_a_file_is_described(name: str, columns: tuple[str, ...]) -> None:
    text = section_of(f"{name}.csv")
    assert not [column for column in columns if not re.search(rf"\b{column}\b", text)]


def test_every_key_of_the_summary_is_described() -> None:
    summary = analyse(leaky_job(), only=tuple(one.name for one in OWN)).summary
    rows = re.findall(r"^\| ([\w, ]+) \|", section_of("summary.json"), re.MULTILINE)
    known = {key for row in rows for key in row.split(", ")}
    assert not summary.as_json().keys() - known
