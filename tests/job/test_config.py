"""msmemscope.config() in the middle of a program."""

from __future__ import annotations

import csv
import sys

from running import Watch

MIB = 1 << 20

NARROWED = f"""
import torch, msmemscope
before = torch.zeros({MIB})
msmemscope.config(device="npu:1")
unasked = torch.zeros({2 * MIB})
del before, unasked
msmemscope.stop()
msmemscope.config(device="cpu")
msmemscope.start()
again = torch.zeros({3 * MIB})
"""


def test_what_was_recorded_is_recorded_as_freed_when_other_devices_are_selected(watch: Watch) -> None:
    """Each of a float of 4 bytes; what came while the host was not asked for has neither beginning nor end."""
    outcome = watch(sys.executable, "-c", NARROWED)
    assert outcome.status == 0, outcome.stderr
    (file,) = outcome.output.rglob("memscope_dump_*.csv")
    with file.open(newline="") as rows:
        told = [
            (row["Event"], int(row["Attr"].split("size:")[1].split(",")[0]))
            for row in csv.DictReader(rows)
            if row["Event"] in ("MALLOC", "FREE") and "shadow:true" not in row["Attr"]
        ]
    assert told[:3] == [("MALLOC", 4 * MIB), ("FREE", 4 * MIB), ("MALLOC", 12 * MIB)]
    assert told[3:] in ([], [("FREE", 12 * MIB)])  # whether the interpreter frees what is left at its end
