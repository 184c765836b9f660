"""The end of a run: the last tables, the verdict, and what is made from them.

In: a shard that nobody sends to any more. Out: whole tables, the outputs, the last run.json, and the exit status.
"""

from __future__ import annotations

import json
import signal
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msmemscope.aggregate.coordinator import Coordinator
from msmemscope.aggregate.judge import Judge
from msmemscope.aggregate.run_place import Place
from msmemscope.aggregate.shard import Shard
from msmemscope.collect.session import FINISH
from msmemscope.errors import MemscopeError
from msmemscope.telling import tell

if TYPE_CHECKING:
    from msmemscope.report.outputs import Outcome

GIVE_UP_S = 10.0  # how long a full disk is waited for at the end


def finish(
    run: Path,
    session_dir: Path,
    session: dict[str, Any],
    shard: Shard,
    coordinator: Coordinator,
    place: Place,
    judge: Judge,
    *,
    quiet: bool,
) -> int:
    """Rolls, writes the outputs and the last run.json. quiet: this terminal waits for no verdict."""
    with suppress(OSError):  # write_tables says it
        coordinator.end(read_finish(session_dir / FINISH))
    write_tables(run, shard, coordinator)

    def over(**more: Any) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        shard.tidy()
        coordinator.write(finished=True, **more)

    # From here on only what can be made again is at stake. Whoever is interrupted removes what is half written.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if not session.get("aggregator", {}).get("outputs", True):  # benchmarks: tables only
        judge.finish()
        over()
        return 0
    coordinator.try_write()
    try:
        judge.finish()
        outcome = _write_outputs(run, session, judge, quiet=quiet)
        shard.losses.skipped_parts += [name for name in outcome.skipped if name not in shard.losses.skipped_parts]
        shard.losses.unreadable_rows = max(shard.losses.unreadable_rows, outcome.unreadable_rows)
        for note in () if quiet else outcome.notes:
            tell(f"Note: {note}")
    except KeyboardInterrupt as stopped:
        tell(str(stopped) or f"interrupted; all outputs: msmemscope analyze {run}")
        over(outputs_error="interrupted")
        return 0
    except Exception as error:  # noqa: BLE001 - the tables are whole; what is derived from them can be made again
        if not place.is_ours:
            why = f"{run} was deleted while its outputs were written: what it held is lost"
        elif isinstance(error, MemscopeError):
            why = str(error)
        else:
            why = f"the outputs could not be written ({error!r}); `msmemscope analyze {run}` tries again"
        tell(why)
        with suppress(OSError):
            over(outputs_error=repr(error))
        return MemscopeError.exit_status
    over()
    return 0


def write_tables(run: Path, shard: Shard, coordinator: Coordinator) -> None:
    try:
        if shard.close(GIVE_UP_S):
            with suppress(FileNotFoundError):
                (run / "journal").rmdir()
            coordinator.write_losses()
            return
        why = "no room"
    except OSError as error:
        why = str(error.strerror)
    if not run.is_dir():
        raise MemscopeError(f"{run} was deleted and cannot be made again ({why}): what it held is lost")
    waiting = sum(path.stat().st_size for path in (run / "journal").glob("*.journal")) / (1 << 20)
    raise MemscopeError(
        f"{run}: the tables could not be written ({why}); {waiting:.1f} MiB wait in its journal: "
        f"make room, then msmemscope analyze {run}"
    )


def read_finish(path: Path) -> dict[str, Any]:
    """What the supervisor says of the program's end; {} when it says nothing."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _write_outputs(run: Path, session: dict[str, Any], judge: Judge, *, quiet: bool) -> Outcome:
    """The verdict is printed before anything long is written, under a progress bar."""
    from msmemscope.progress import progress_bar
    from msmemscope.report.outputs import OutputError, write_outputs  # imports the analyses: only now

    with nullcontext() if quiet else progress_bar() as progress:

        def say(verdict: str) -> None:
            if progress is not None:
                progress.clear()
            if not quiet:
                _print(verdict)

        try:
            config = session.get("config")
            final = judge.final()
            return write_outputs(run, config=config, analysis=final, blocks=judge.blocks, progress=progress, tell=say)
        except OutputError as error:
            if quiet:
                _print(error.outcome.text)
            raise


def _print(text: str) -> None:
    """The verdict on stderr, as long as somebody reads that; summary.txt has it in any case."""
    from msmemscope.report.console import print_text

    with suppress(OSError, ValueError):
        print_text(text)
