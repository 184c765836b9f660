"""An analysis of another package: the site with the most allocations of each process. One file, as everybody's."""

from __future__ import annotations

from dataclasses import dataclass, replace

from msmemscope.analysis.analyzer import Analyzer, Tables
from msmemscope.analysis.findings import Finding, Row, format_bytes


@dataclass(frozen=True)
class OddOptions:
    """What no text can say."""

    sites: tuple[str, ...] = ()


@dataclass(frozen=True)
class ToyOptions:
    """What it may be told."""

    least: int = 1
    """Allocations below which a site is not worth a word."""
    share: float = 0.25
    loud: bool = False
    word: str = "many"

    def __post_init__(self) -> None:
        if self.least < 0:
            raise ValueError(f"least takes a number from 0 on; got {self.least}")


def judge(tables: Tables, options: ToyOptions) -> list[Finding]:
    found = []
    sites = tables.tracked.sites
    for subject in tables.tracked.subjects:
        rows = [n for n, process in enumerate(sites["process"].tolist()) if process in subject.members]
        row = max(rows, key=lambda n: int(sites["allocs"][n]))
        allocs = int(sites["allocs"][row])
        if allocs < options.least:
            continue
        stack = tables.stack(int(sites["stack_py"][row]))
        found.append(
            Finding(
                kind="busy_site",
                severity="warning",
                confidence=1.0,
                ranks=() if subject.rank is None else (subject.rank,),
                scope="single",
                device="cpu",
                pool="HOST",
                first_step=0,
                last_step=0,
                bytes=0,
                bytes_per_step=0.0,
                blocks=allocs,
                site=stack,
                file=stack[0].file,
                line=stack[0].line,
                function=stack[0].function,
                headline="TOY",
                sentence=f"{subject.label} allocates {allocs} times at {stack[0].file}.",
                details=(f"that many: {format_bytes(0)}",),
                row=Row("toy", {"who": subject.label, "allocs": allocs, "share": 0.25, "file": f"={stack[0].file}"}),
            )
        )
    return found


def end(tables: Tables, options: ToyOptions) -> list[Finding]:
    raise SystemExit(5)


def fail(tables: Tables, options: ToyOptions) -> list[Finding]:
    raise ZeroDivisionError("no luck")


TOY = Analyzer(
    name="toy",
    needs=("sites",),
    options=ToyOptions,
    judge=judge,
    files={"toy": ("who", "allocs", "share", "file", "nothing")},
)


def say_what_is_wrong(tables: Tables, options: ToyOptions) -> list[Finding]:
    return [replace(one, row=None, confidence=None) for one in judge(tables, options)]  # type: ignore[arg-type]


GREEDY = replace(TOY, figures=lambda _: {"leaks": 77, "schema": 9, "findings": None, "toys": [1]})
NO_ANALYSIS = "a text"
FAILING = Analyzer(name="broken", needs=("sites", "leaks"), options=ToyOptions, judge=fail)
ENDING = Analyzer(name="broken", needs=("sites",), options=ToyOptions, judge=end)
WRONG = Analyzer(name="broken", needs=("sites",), options=ToyOptions, judge=say_what_is_wrong)
SILENT = Analyzer(name="broken", needs=(), options=ToyOptions, judge=lambda *_: [], verdict=lambda one: str(1 // 0))
UNDECLARED = Analyzer(name="broken", needs=("sites",), options=ToyOptions, judge=judge)
TAKES_A_NAME = Analyzer(name="leaks", needs=(), options=ToyOptions, judge=judge)
TAKES_A_FILE = Analyzer(name="broken", needs=(), options=ToyOptions, judge=judge, files={"steps": ("step",)})
NEEDS_MORE = Analyzer(name="broken", needs=("wishes",), options=ToyOptions, judge=judge)
ODD = Analyzer(name="broken", needs=(), options=OddOptions, judge=judge)
IDLE = Analyzer(name="idle", needs=("touches",), options=ToyOptions, judge=judge, asked_by=("idle",))
