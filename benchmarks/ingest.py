"""How fast events go from rings through agent, aggregator and tables to the block tracker, and what they take on disk.

    python benchmarks/ingest.py [--events 3000000] [--rings 2]

Writers (realistic churn: size classes, addresses from free lists, running counters, no stacks) write into rings of
the default size as fast as they are emptied. Agent and aggregator drain them, both pinned to one core; the writers
run on the others. Afterwards the tracker reads the tables on the same core. The rate is events per second of CPU time
of all three together, start-up of the processes taken off by a run of one event; the wall clock's rate stands beside
it, and the two differ when the machine has other work.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from rings import Job, build_writer  # noqa: E402

from msmemscope.analysis import blocks  # noqa: E402
from msmemscope.tables.run import Run  # noqa: E402

RING_BYTES = 16 << 20


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--events", type=int, default=3_000_000, help="over all rings")
    arguments.add_argument("--rings", type=int, default=2)
    options = arguments.parse_args()
    core = min(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory() as directory:
        writer = build_writer(Path(directory))
        idle, _, _ = ingest(Path(directory) / "idle", writer, core, 1, 1)
        used, wall, run = ingest(Path(directory) / "full", writer, core, options.events, options.rings)
        events = sum(entry["events"] for entry in run.info["processes"])
        assert events == options.events // options.rings * options.rings, "not everything arrived"
        size = sum(path.stat().st_size for path in run.path.glob("events/*.parquet"))
        os.sched_setaffinity(0, {core})
        begun = time.process_time(), time.monotonic()
        tracked = blocks.track(run)
        tracker, tracker_wall = time.process_time() - begun[0], time.monotonic() - begun[1]
        assert tracked.events == events
    services = {name: used[name] - idle[name] for name in used}
    total = sum(services.values()) + tracker
    print(f"{events:,} events in {options.rings} rings, one core")
    print(f"{'stage':<28}{'ns/event':>10}{'M events/s':>12}")
    for name, seconds in [*services.items(), ("tables -> tracker", tracker), ("all", total)]:
        print(f"{name:<28}{seconds / events * 1e9:>10.0f}{events / seconds / 1e6:>12.2f}")
    print(f"{'all, by the wall clock':<28}{'':>10}{events / (wall + tracker_wall) / 1e6:>12.2f}")
    print(f"bytes per event on disk: {size / events:.2f}")
    return 0


def ingest(output: Path, writer: Path, core: int, events: int, rings: int) -> tuple[dict[str, float], float, Run]:
    """CPU seconds of agent and aggregator, wall seconds, and the run."""
    output.mkdir()
    # A slow start of the aggregator must not send the full rings to the spool.
    job = Job(output, writer, aggregator={"outputs": False}, agent={"silence_s": 60})
    try:
        begun = time.monotonic()
        for name in ("aggregator", "agent"):
            job.start(name, preexec_fn=lambda: os.sched_setaffinity(0, {core}))
        others = os.sched_getaffinity(0) - {core} or {core}
        writers = []
        for ring in range(rings):
            count = events // rings
            options = {"rank": ring, "events": count, "bytes": RING_BYTES, "wait_ms": 10**6, "churn": 1, "strings": 0}
            writers.append(job.write(ring + 1, **options))
            os.sched_setaffinity(writers[-1].pid, others)
        for process in writers:
            process.wait()
        job.finish()
        used = {}
        for name in ("agent", "aggregator"):
            _, status, usage = os.wait4(job.services[name].pid, 0)
            job.services[name].returncode = os.waitstatus_to_exitcode(status)
            assert status == 0, f"the {name} failed ({status}): {job.said(name)}"
            used[name] = usage.ru_utime + usage.ru_stime
        return used, time.monotonic() - begun, job.run()
    finally:
        job.close()


if __name__ == "__main__":
    sys.exit(main())
