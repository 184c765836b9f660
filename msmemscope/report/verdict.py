"""The files of a verdict: cluster/, the findings, and the console's text as summary.txt."""

from __future__ import annotations

from pathlib import Path

from msmemscope.report.analysed import Analysis
from msmemscope.report.cluster import put_in_place, write_cluster
from msmemscope.report.console import plain_text


def write_verdict(analysis: Analysis) -> list[Path]:
    """Replaces all of them, each at once; returns their paths. OSError when there is no room."""
    run = analysis.run
    made = write_cluster(run.path, analysis.tracked, analysis.summary)
    path = run.path / "summary.txt"
    with put_in_place(path) as temporary:
        temporary.write_text(plain_text(analysis), encoding="utf-8", errors="replace")
    return [*made, path]
