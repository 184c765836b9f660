"""Upstream's msmemscope.analyzer, and the analyses of a run of ours.

Upstream's analyses read a memscope_dump_*.csv or .db, or a directory in which such files lie; check_leaks() takes a run
as well.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from msmemscope.text import plain

TYPE_CHECKING = False
if TYPE_CHECKING:
    from msmemscope.analysis.findings import Finding
    from msmemscope.imports.inefficient_check import InefficientBlock, InefficientBlocks
    from msmemscope.imports.leak_check import LeftBlock

__all__ = ["InefficientAnalyzer", "InefficientConfig", "LeaksAnalyzer", "LeaksConfig", "analyze", "check_inefficient",
           "check_leaks", "get_analyzer_config", "list_analyzers"]  # fmt: skip

POOLS = ("HAL", "PTA", "PTA_WORKSPACE", "MINDSPORE", "ATB", "HOST", "CUDA", "CUDA_DRIVER")
INEFFICIENT_TYPES = ("early_allocation", "late_deallocation", "temporary_idleness")

_LONGEST_PATH = 4096


class LeaksConfig:
    """The arguments of check_leaks(). Raises TypeError, ValueError, FileNotFoundError and PermissionError."""

    parameters = ("input_path", "mstx_info", "start_index")

    def __init__(self, input_path: str, mstx_info: str, start_index: int):
        if not _is_run(input_path):
            _check_input(input_path, (".csv", ".db"))
        if not isinstance(mstx_info, str):
            raise TypeError(f"mstx_info takes text; got {type(mstx_info).__name__}")
        if not mstx_info.strip():
            raise ValueError("mstx_info is blank")
        _check_number("start_index", start_index, 0)
        self.input_path, self.mstx_info, self.start_index = input_path, mstx_info, start_index


class InefficientConfig:
    """The arguments of check_inefficient(). Raises as LeaksConfig does."""

    parameters = ("input_path", "mem_size", "inefficient_type", "idle_threshold")

    def __init__(
        self,
        input_path: str,
        mem_size: int = 0,
        inefficient_type: str | list[str] | None = None,
        idle_threshold: int = 3000,
    ):
        if _is_run(input_path):
            raise ValueError(
                f"{input_path} is a run, which analyze({str(input_path)!r}, only='inefficient') judges; this takes a "
                "memscope_dump_*.csv or .db, or a directory of them"
            )
        _check_input(input_path, (".csv", ".db"))
        _check_number("mem_size", mem_size, 0)
        _check_number("idle_threshold", idle_threshold, 1)
        types = [inefficient_type] if isinstance(inefficient_type, str) else inefficient_type
        if types is not None and (not isinstance(types, list) or not types or _unknown(types, INEFFICIENT_TYPES)):
            raise ValueError(f"inefficient_type takes one or some of {', '.join(INEFFICIENT_TYPES)}")
        self.input_path, self.mem_size, self.idle_threshold = input_path, mem_size, idle_threshold
        self.inefficient_type = types


_CONFIGS: dict[str, type[LeaksConfig] | type[InefficientConfig]] = {
    "leaks": LeaksConfig,
    "inefficient": InefficientConfig,
}


class LeaksAnalyzer:
    """check_leaks() as a class."""

    def __init__(self, config: LeaksConfig | None = None):
        self.config = config

    def analyze(self, config: LeaksConfig | None = None) -> list[LeftBlock]:
        """As check_leaks(), with the arguments of `config`, or those that the analyzer was made with."""
        chosen = config or self.config
        if chosen is None:
            raise ValueError("LeaksAnalyzer().analyze() takes a LeaksConfig")
        return check_leaks(str(chosen.input_path), chosen.mstx_info, chosen.start_index)


class InefficientAnalyzer:
    """check_inefficient() as a class."""

    def __init__(self, config: InefficientConfig | None = None):
        self.config = config

    def analyze(self, config: InefficientConfig | None = None, *, in_place: bool = False) -> Sequence[InefficientBlock]:
        """As check_inefficient(), with the arguments of `config`, or those that the analyzer was made with."""
        chosen = config or self.config
        if chosen is None:
            raise ValueError("InefficientAnalyzer().analyze() takes an InefficientConfig")
        return check_inefficient(
            str(chosen.input_path),
            chosen.mem_size,
            chosen.inefficient_type,
            chosen.idle_threshold,
            in_place=in_place,
        )


def check_leaks(
    input_path: str, mstx_info: str, start_index: int, *, pools: Sequence[str] = ("HAL",)
) -> list[LeftBlock]:
    """What is left between marks in a memscope_dump_*.csv or .db, in all of a directory, or in all processes of a run:
    on stdout, and as a list.

    Of three mstx marks A, B and C with the name `mstx_info`, of which A is number `start_index` from 0 on, of each
    process on each device: blocks that were allocated between A and B and are alive at C, rows taken in the order of
    their IDs. pools: of HAL, PTA, PTA_WORKSPACE, MINDSPORE, ATB, HOST, CUDA, CUDA_DRIVER.

    Of a directory each file is judged by itself, whatever its depth; `file` and `rank` of a block tell which, and what
    its path says. Files that cannot be used, and those whose rows another file of the same process has (its csv and its
    db), are skipped, told and counted.

    Of a run directory each rank has marks of its own, as msmemscope.mark() and mstx make them, and events count in the
    order in which they were recorded. Host memory goes by the marks of all threads, a card by those of threads that
    use it.

    Raises ValueError and OSError for wrong arguments, FileNotFoundError also for a directory without such a file,
    InputError for a file that is no memscope_dump, RunError for a run of a schema that this version does not know.
    """
    config = LeaksConfig(input_path, mstx_info, start_index)
    if isinstance(pools, str) or not pools or _unknown(pools, POOLS):
        raise ValueError(f"pools takes some of {', '.join(POOLS)}")
    path, mark, start, wanted = Path(config.input_path), config.mstx_info, config.start_index, list(pools)
    if _is_run(path):
        from msmemscope.imports.run_leak_check import check_run

        return check_run(path, mark, start, wanted, _tell)
    from msmemscope.imports.dump_directory import each_file
    from msmemscope.imports.leak_check import check

    if not path.is_dir():
        return check(path, mark, start, wanted, _tell)
    found = each_file(path, _tell, lambda one, among: check(one, mark, start, wanted, _tell, among=among))
    return [block for blocks in found for block in blocks]


def check_inefficient(
    input_path: str,
    mem_size: int = 0,
    inefficient_type: str | list[str] | None = None,
    idle_threshold: int = 3000,
    *,
    in_place: bool = False,
) -> Sequence[InefficientBlock]:
    """Blocks made too early, freed too late or idle, in a memscope_dump_*.csv or .db, or in all of a directory: on
    stdout, as a sequence, and as `inefficient_type` in the Attr of their MALLOC rows.

    Smaller blocks than mem_size (bytes) are passed over; inefficient_type: one or some of early_allocation,
    late_deallocation and temporary_idleness, all without it; idle_threshold: so many operators and more between two
    accesses are idleness. Rows are taken in the order of their IDs. The sequence makes a block when it is asked for:
    there may be millions.

    The file is not touched: a copy of it, `memscope_dump_1.inefficient.csv`, is written beside it and has the marks.
    in_place=True rewrites the file itself, as upstream does; a failure on the way leaves it whole.

    Of a directory each file is judged by itself and has a copy of its own, whatever its depth; what is skipped is as
    with check_leaks().

    Raises ValueError and OSError for wrong arguments, FileNotFoundError also for a directory without such a file,
    InputError for a file that is no memscope_dump.
    """
    config = InefficientConfig(input_path, mem_size, inefficient_type, idle_threshold)
    path = Path(config.input_path)
    from msmemscope.imports.dump_directory import OneOfSeveral, each_file
    from msmemscope.imports.inefficient_check import beside, check, joined

    def judge(one: Path, among: OneOfSeveral | None = None) -> InefficientBlocks:
        if in_place and not os.access(one, os.W_OK):
            raise PermissionError(f"cannot write {one}")
        target = one.resolve() if in_place else beside(one)
        return check(one, config.mem_size, config.inefficient_type, config.idle_threshold, target, _tell, among=among)

    if not path.is_dir():
        return judge(path)
    return joined(each_file(path, _tell, judge))


def analyze(analyzer_type: str | Path, *, only: str | Sequence[str] = (), **options: object) -> list[Finding] | None:
    """The findings of a run, worst first: `analyze("memscopeDumpResults/run_20260101120000_a1b2c3")`. Writes nothing.

    only: names of analyses, as one text with commas or as several; without it those of the run's --analysis. Further
    keywords are the options of an analysis, by its name: `analyze(run, only="leaks", leaks={"min_steps": 40})`. A run
    that is being recorded is judged by what is stored.

    With upstream's words "leaks" and "inefficient" it is check_leaks() or check_inefficient(), and returns None; a run
    directory of that name is `Path("leaks")`. With the name of another analysis it is that one alone, with its options:
    `analyze("peers", input_path=run, min_share=0.1)`.

    Raises ValueError for another word and for an unknown analysis or option, RunError for a directory that is no run,
    MemscopeError where `only` names an analysis of another package that fails.
    """
    if isinstance(analyzer_type, str) and analyzer_type in _CONFIGS:
        if only:
            raise ValueError("only= is for a run directory")
        checks = {"leaks": check_leaks, "inefficient": check_inefficient}
        checks[analyzer_type](**options)  # type: ignore[operator]
        return None
    if not Path(analyzer_type).is_dir() or (isinstance(analyzer_type, str) and "input_path" in options):
        name, run = str(analyzer_type), options.pop("input_path", None)
        _check_known(name, ", and no run directory")
        if not isinstance(run, (str, os.PathLike)):
            raise ValueError(f"analyze({name!r}) takes input_path, a run directory")
        return analyze(Path(run), only=name, **{name: options})
    from msmemscope.errors import MemscopeError, UsageError
    from msmemscope.report.analysed import analyse
    from msmemscope.tables.run import Run

    names = only.split(",") if isinstance(only, str) and only else only
    asked = [name.strip() for name in names]
    try:
        made = analyse(Run(analyzer_type), only=asked, options=options)
    except UsageError as error:
        raise ValueError(str(error)) from None
    if failed := [
        f"{one.analyzer.name}: {one.failed}" for one in made.judged if one.failed and one.analyzer.name in asked
    ]:
        raise MemscopeError(f"an analysis that was asked for failed: {'; '.join(failed)}")
    return list(made.summary.findings)


def list_analyzers() -> list[str]:
    """The words that analyze() takes: upstream's, then the names of all other analyses that are installed."""
    from msmemscope.analysis import registry

    return list(dict.fromkeys([*_CONFIGS, *registry.list_analyzers()]))


def get_analyzer_config(analyzer_type: str) -> dict[str, object]:
    """{"config_class": name, "parameters": [names]} of one analysis; of one that is no word of upstream its options,
    with "defaults" and "help" by parameter. Raises ValueError for an unknown one."""
    _check_known(analyzer_type)
    if analyzer_type in _CONFIGS:
        config = _CONFIGS[analyzer_type]
        return {"config_class": config.__name__, "parameters": list(config.parameters)}
    from msmemscope.analysis import registry
    from msmemscope.analysis.options import fields_of

    options = registry.get_analyzer(analyzer_type).options
    fields = fields_of(options)
    return {
        "config_class": options.__name__,
        "parameters": [one.name for one in fields],
        "defaults": {one.name: one.default for one in fields},
        "help": {one.name: one.help for one in fields},
    }


def _check_known(analyzer_type: str, more: str = "") -> None:
    if analyzer_type not in (known := list_analyzers()):
        raise ValueError(f"unknown analyzer {analyzer_type!r}{more}; known: {', '.join(known)}")


def _is_run(path: object) -> bool:
    # False, too, for what can be no path.
    return isinstance(path, (str, os.PathLike)) and os.path.isfile(os.path.join(path, "run.json"))  # noqa: PTH113, PTH118


def _unknown(words: Sequence[object], known: Sequence[str]) -> bool:
    """Whether one of the words is none of the known, whatever it is."""
    return any(word not in known for word in words)


def _check_input(path: str, suffixes: tuple[str, ...]) -> None:
    if not isinstance(path, (str, os.PathLike)):
        raise TypeError(f"input_path takes text; got {type(path).__name__}")
    text = os.fspath(path)
    if len(text) > _LONGEST_PATH:
        raise ValueError(f"input_path is longer than {_LONGEST_PATH} characters")
    if not os.path.isfile(text) and not os.path.isdir(text):  # noqa: PTH112, PTH113
        raise FileNotFoundError(f"no such file or directory: {text}")
    if not os.access(text, os.R_OK):
        raise PermissionError(f"cannot read {text}")
    if Path(text).is_dir():
        from msmemscope.imports.upstream_files import files_below

        if not files_below(Path(text)):
            raise FileNotFoundError(f"no memscope_dump_<time>.csv or .db lies in {text}")
        return
    if not text.endswith(suffixes):
        raise ValueError(f"input_path ends in {' or '.join(suffixes)}; got {text}")


def _tell(line: str) -> None:
    """Names of marks and files are anybody's."""
    print(plain(line))


def _check_number(name: str, value: object, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{name} takes a whole number from {least} on; got {value!r}")
