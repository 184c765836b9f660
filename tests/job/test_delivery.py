"""From the ring to the tables with real processes: whatever is killed, each event is stored exactly once.

The writer (tests/native/ring_writer.cpp) numbers its events, so what must stand in the tables is known.
"""

from __future__ import annotations

import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

import msgpack
import numpy as np
import pytest
import zmq
from built_once import built_once
from patience import LIMIT_S
from rings import ROOT, Job, assert_exactly_once, build_writer, process_entry, stored_numbers, wait_for

from msmemscope._native import RingReader
from msmemscope.aggregate.journal import segments
from msmemscope.aggregate.shard import Shard
from msmemscope.aggregate.take_up import recover
from msmemscope.collect.agent.loop import Agent
from msmemscope.errors import MemscopeError
from msmemscope.wire import messages

QUICK = {"interval_ms": 5, "silence_s": 0.3}  # short batches, so that a kill finds many of them on their way
LOSSLESS = 10**6  # wait_ms: a writer that rather waits than drops
EVENT_BYTES = 96
DEFINITION_BYTES = 3 * (24 + 8) + 3 * 40 + (24 + 3 * 8)  # what the writer writes before its first event

MakeJob = Callable[..., Job]


@pytest.fixture(scope="session")
def writer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built_once(tmp_path_factory, "ring_writer", build_writer)


@pytest.fixture
def make_job(tmp_path: Path, writer: Path) -> Iterator[MakeJob]:
    jobs: list[Job] = []

    def make(**session: object) -> Job:
        jobs.append(Job(tmp_path / "out", writer, **session))
        return jobs[-1]

    yield make
    for job in jobs:
        job.close()


def end(job: Job) -> None:
    """Lets a job come to its end, with services that still run."""
    job.finish()
    assert job.wait("agent") == 0
    job.wait("aggregator")
    run = job.run()
    assert run.info["finished"] is True
    assert run.skipped == []


def wait_until_stored(job: Job, ring: int, events: int) -> None:
    end = DEFINITION_BYTES + events * EVENT_BYTES
    wait_for(lambda: job.acked(ring) >= end, f"{events} events to be stored")


def test_two_ranks_are_stored_once_and_called(make_job: MakeJob) -> None:
    job = make_job(aggregator={"roll_rows": 60_000})
    job.start("aggregator")
    job.start("agent")
    writers = [job.write(7 + rank, rank=rank, world=3, events=100_000, wait_ms=LOSSLESS) for rank in (0, 1)]
    for process in writers:
        assert process.communicate()[0] == "committed 100000\n"
    heads = {ring: job.head(ring) for ring in (7, 8)}
    end(job)

    run = job.run()
    for rank, ring in enumerate((7, 8)):
        assert_exactly_once(run, ring, 100_000)
        assert process_entry(run, ring)["stored_to"] == heads[ring]
        assert process_entry(run, ring)["closed"] is True
        assert sum(batch.num_rows for batch in run.events(rank=rank)) == 100_000
    calls = [(call["rank"], call["reported"], call["events"]) for call in run.info["roll_call"]]
    assert run.info["exit_status"] == 0
    assert calls == [(0, True, 100_000), (1, True, 100_000), (2, False, 0)]
    losses = run.info["losses"]
    assert losses["gaps"] == {}
    assert losses["holes"] == losses["missing_bytes"] == losses["invalid_batches"] == 0
    # The stack and its texts, defined in the ring, are the same for both.
    assert [frame.file for frame in run.stack(77)] == ["text-0", "text-1", "text-2"]
    assert len(list(job.run_dir.glob("events/part-*.parquet"))) > 1
    # Nothing is left behind, and nobody else may read what is kept.
    assert not list(job.dir.glob("*.ring"))
    assert not (job.run_dir / "journal").exists()
    ours = [job.run_dir / name for name in ("run.json", "usage.parquet", "losses.parquet")]
    ours += [path for name in ("events", "strings", "frames", "stacks") for path in (job.run_dir / name).rglob("*")]
    assert {path.stat().st_mode & 0o077 for path in [job.run_dir, *ours]} == {0}


def test_a_killed_writer_keeps_what_it_committed(make_job: MakeJob) -> None:
    job = make_job(agent=QUICK)
    job.start("aggregator")
    job.start("agent")
    for ring, crash_at in ((1, 0), (2, 1), (3, 5_000), (4, 33_333)):
        process = job.write(ring, rank=ring, events=100_000, crash_at=crash_at, wait_ms=LOSSLESS)
        assert process.wait() == -signal.SIGKILL
    # ... and one whose end nobody chose.
    process = job.write(5, rank=5, events=10**9, rate=200_000, threads=2, wait_ms=LOSSLESS)
    wait_for(lambda: job.head(5) > 3_000_000, "some events")
    process.kill()
    process.wait()
    end(job)

    run = job.run()
    for ring, crash_at in ((1, 0), (2, 1), (3, 5_000), (4, 33_333)):
        assert_exactly_once(run, ring, crash_at)
        assert process_entry(run, ring)["closed"] is False
    assert process_entry(run, 5)["stored_to"] == job.head(5)
    numbers = stored_numbers(run, 5)
    holes = run.info["losses"]["holes"]
    assert holes <= 2
    assert len(np.unique(numbers)) == len(numbers)
    assert len(numbers) == (job.head(5) - DEFINITION_BYTES) // EVENT_BYTES - holes


def test_holes_of_a_dead_writer_are_stepped_over_and_counted(make_job: MakeJob) -> None:
    job = make_job(agent=QUICK)
    job.start("aggregator")
    job.start("agent")
    # As long as it lives it blocks its ring at the first hole, so the ring must hold all of it.
    process = job.write(9, rank=0, events=1_000, hole_every=100, bytes=1 << 20)
    process.wait()
    end(job)

    run = job.run()
    assert run.info["losses"]["holes"] == 10
    assert stored_numbers(run, 9).tolist() == [i for i in range(1_000) if i % 100 != 99]


def test_a_writer_of_another_pid_namespace_lives_until_it_ends(make_job: MakeJob) -> None:
    private = ("unshare", "--pid", "--fork", "--kill-child")
    if subprocess.run([*private, "true"], stderr=subprocess.DEVNULL).returncode != 0:
        pytest.skip("no PID namespace can be made here")
    job = make_job(agent=QUICK)
    job.start("aggregator")
    job.start("agent")
    # Each believes to be process 1, which is somebody else where the agent looks.
    linger = {"linger_ms": 10**6, "wait_ms": LOSSLESS}
    with_holes = job.write(1, under=private, rank=0, events=1_000, hole_every=100, **linger)
    whole = job.write(2, under=private, rank=1, events=1_000, **linger)
    first_hole = DEFINITION_BYTES + 99 * EVENT_BYTES
    wait_for(lambda: job.acked(1) >= first_hole, "what stands before the first hole")
    wait_for(lambda: job.acked(2) == job.head(2), "what the other wrote")
    # Rings of a process that came and went meanwhile show that the agent has looked at all of them again.
    for ring in (3, 4):
        job.write(ring, rank=2, events=100).wait()
        wait_for(lambda ring=ring: not (job.dir / f"{ring:016x}.ring").exists(), "the end of a ring")
    assert job.acked(1) == first_hole
    assert all((job.dir / f"{ring:016x}.ring").exists() for ring in (1, 2))
    for process in (with_holes, whole):
        process.kill()
    wait_for(lambda: not list(job.dir.glob("*.ring")), "the end of both")
    end(job)
    run = job.run()
    assert run.info["losses"]["holes"] == 10
    assert stored_numbers(run, 1).tolist() == [i for i in range(1_000) if i % 100 != 99]
    assert_exactly_once(run, 2, 1_000)
    # Whoever has number 1 here is not measured in their place.
    pids = {row["ring"] for row in run.usage().select(["ring"]).to_pylist()}
    assert not pids & {1, 2}


@pytest.mark.parametrize("victim", ["agent", "aggregator"])
def test_killed_services_store_everything_once(make_job: MakeJob, victim: str) -> None:
    # Given small rolls and short batches, so that every stage is hit some time,
    job = make_job(agent=QUICK, aggregator={"roll_rows": 20_000})
    job.start("aggregator")
    job.start("agent")
    process = job.write(1, rank=0, events=250_000, rate=80_000, wait_ms=LOSSLESS)
    # when one of the two is killed again and again while the writer goes on,
    chance = random.Random(victim)
    while process.poll() is None or job.kills.get(victim, 0) < 3:
        time.sleep(chance.uniform(0.3, 1.2))
        job.kill(victim)
        job.start(victim)
    end(job)
    # then nothing is missing and nothing is there twice.
    run = job.run()
    assert_exactly_once(run, 1, 250_000)
    assert process_entry(run, 1)["stored_to"] == job.head(1)
    assert run.info["losses"]["missing_bytes"] == 0


def test_everything_is_killed_in_turn(make_job: MakeJob) -> None:
    job = make_job(agent=QUICK, aggregator={"roll_rows": 20_000})
    job.start("agent")
    job.start("aggregator")
    chance = random.Random(3)
    crash_at = {ring: chance.randrange(30_000, 90_000) for ring in (1, 2, 3)}
    writers = [
        job.write(ring, rank=ring, events=10**6, rate=30_000, crash_at=at, wait_ms=LOSSLESS)
        for ring, at in crash_at.items()
    ]
    while any(process.poll() is None for process in writers):
        victim = chance.choice(["agent", "aggregator"])
        time.sleep(chance.uniform(0.1, 1.0))
        job.kill(victim)
        time.sleep(chance.uniform(0, 0.3))
        job.start(victim)
    # Also in the middle of the end.
    job.finish()
    time.sleep(0.2)
    for victim in ("agent", "aggregator"):
        if job.services[victim].poll() is None:
            job.kill(victim)
            job.start(victim)
    assert job.wait("agent") == 0
    job.wait("aggregator")
    run = job.run()
    assert run.info["finished"] is True
    for ring, at in crash_at.items():
        assert_exactly_once(run, ring, at)


def test_spool_while_the_aggregator_is_away(make_job: MakeJob) -> None:
    # Given a small ring and nobody who acknowledges,
    job = make_job(agent=QUICK)
    job.start("agent")
    process = job.write(1, rank=0, events=60_000, bytes=1 << 17, rate=20_000, wait_ms=LOSSLESS)
    # when the writer has written many times what the ring holds,
    spool = wait_for(lambda: next(iter(job.output.glob(".*-spool/*.spool")), None), "the spool")
    wait_for(lambda: spool.stat().st_size > 1_000_000, "the spool to grow")
    # and the agent is killed over it,
    job.kill("agent")
    job.start("agent")
    process.wait()
    # then the aggregator gets it all once it comes.
    job.start("aggregator")
    end(job)
    assert_exactly_once(job.run(), 1, 60_000)
    assert not list(job.output.glob(".*-spool"))


def test_an_aggregator_that_is_slow_for_a_while_costs_nothing(make_job: MakeJob) -> None:
    """It is no silence: the agent would wait for long before it takes it for one."""
    job = make_job(agent={**QUICK, "silence_s": 60})
    job.start("agent")
    aggregator = job.start("aggregator")
    process = job.write(1, rank=0, events=160_000, bytes=1 << 22, rate=40_000, wait_ms=LOSSLESS)
    wait_for(lambda: job.ring_file(1).exists() and job.acked(1) > 0, "the first acknowledgement")
    aggregator.send_signal(signal.SIGSTOP)
    # Many times what the ring holds is written meanwhile, which waits until there is room.
    at = job.head(1)
    wait_for(lambda: job.head(1) > at + (1 << 23), "the writer to go on")
    aggregator.send_signal(signal.SIGCONT)
    process.wait()
    end(job)
    assert_exactly_once(job.run(), 1, 160_000)


def test_a_full_spool_makes_the_writer_drop_and_count(make_job: MakeJob) -> None:
    job = make_job(agent={**QUICK, "spool_bytes": 1 << 20})
    job.start("agent")
    wait_for((job.dir / "agent.pid").exists, "the agent")
    process = job.write(1, rank=0, events=40_000, bytes=1 << 17, rate=30_000, wait_ms=20)
    process.wait()
    job.start("aggregator")
    end(job)
    run = job.run()
    numbers = stored_numbers(run, 1)
    lost = sum(run.info["losses"]["gaps"].values())
    assert lost > 0
    assert len(np.unique(numbers)) == len(numbers) == 40_000 - lost
    assert job.said("agent").count("cannot spool") == 1


def test_rings_that_cannot_be_read_are_left_out(make_job: MakeJob) -> None:
    job = make_job(agent=QUICK)
    (job.dir / "garbage.ring").write_bytes(b"not a ring" * 1000)
    (job.dir / "empty.ring").touch()
    (job.dir / "link.ring").symlink_to("/etc/passwd")
    job.write(1, rank=0, events=100, bytes=1 << 16).wait()
    whole = job.ring_file(1).read_bytes()
    (job.dir / "short.ring").write_bytes(whole[:-4096])
    (job.dir / "version.ring").write_bytes(whole[:8] + b"\x07" + whole[9:])
    refused = 5
    if os.geteuid() == 0:
        (job.dir / "foreign.ring").write_bytes(whole)
        os.chown(job.dir / "foreign.ring", 12345, 12345)
        refused += 1
    job.start("aggregator")
    job.start("agent")
    end(job)
    run = job.run()
    assert_exactly_once(run, 1, 100)
    assert run.info["losses"]["refused_rings"] == refused
    assert job.said("agent").count("is left out") == refused
    assert "Traceback" not in job.said("agent")


def test_bad_messages_are_refused_and_the_rest_goes_on(make_job: MakeJob) -> None:
    job = make_job(agent=QUICK)
    job.start("aggregator")
    job.start("agent")
    process = job.write(1, rank=0, events=60_000, rate=60_000, wait_ms=LOSSLESS)
    whole = {"v": 1, "type": "ping", "session": job.id, "clock": 1}
    empty_batch = {
        "offset": 0,
        "length": 8,
        "n": 0,
        "round": 0,
        "clock": 0,
        "holes": 1,
        "invalid": 0,
        "cols": dict.fromkeys(messages.EVENT_BYTES, b""),
        "strings": dict.fromkeys([*messages.STRING_BYTES, "text"], b""),
        "frames": dict.fromkeys(messages.FRAME_BYTES, b""),
        "stacks": dict.fromkeys([*messages.STACK_BYTES, "frames"], b""),
    }
    bad = {
        "not a msgpack map": b"\xc1",
        "not a map": msgpack.packb([1, 2]),
        "version 2": msgpack.packb({**whole, "v": 2}),
        "unknown type 'drop'": msgpack.packb({**whole, "type": "drop"}),
        "another session": msgpack.packb({**whole, "session": "x"}),
        "at most": bytes(messages.MAX_MESSAGE_BYTES + 1),
        "is not a number": msgpack.packb({**whole, "type": "batch", "ring": "1"}),
        "cols.ts has": messages.pack(
            "batch", job.id, ring=1, **{**empty_batch, "cols": {**empty_batch["cols"], "ts": b"x"}}
        ),
        "was not announced": messages.pack("batch", job.id, ring=99, **empty_batch),
    }
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.linger = 0
        socket.connect(str(job.session["endpoint"]))
        for reason, message in bad.items():
            socket.send(message)
            assert socket.poll(1000 * LIMIT_S), f"no answer to the message that should be refused as {reason!r}"
            answer = msgpack.unpackb(socket.recv())
            assert answer["type"] == "refuse"
            assert reason in answer["reason"]
        socket.send(msgpack.packb(whole))
        assert socket.poll(1000 * LIMIT_S)
        assert msgpack.unpackb(socket.recv())["type"] == "pong"
    process.wait()
    end(job)
    assert_exactly_once(job.run(), 1, 60_000)
    assert job.run().info["losses"]["invalid_batches"] == len(bad)


def test_a_run_directory_of_another_session_is_refused(make_job: MakeJob) -> None:
    first = make_job()
    first.start("aggregator")
    first.start("agent")
    first.write(1, rank=0, events=10).wait()
    end(first)
    second = make_job(run=str(first.run_dir))
    second.start("aggregator")
    assert second.wait("aggregator") == 4
    assert "two runs cannot share a directory" in second.said("aggregator")
    assert "Traceback" not in second.said("aggregator")
    assert_exactly_once(first.run(), 1, 10)


def test_an_output_that_cannot_be_written_is_one_line(make_job: MakeJob, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    job = make_job(run=str(tmp_path / "file" / "run"))
    job.start("aggregator")
    assert job.wait("aggregator") == 4
    (line,) = job.said("aggregator").splitlines()
    assert "--output-path" in line


def test_a_full_disk_loses_nothing(make_job: MakeJob) -> None:
    # Given an aggregator whose files may not grow past 100 KB (the limit stands in for a full disk),
    job = make_job(agent=QUICK)
    limit = (100_000, resource.RLIM_INFINITY)
    aggregator = job.start("aggregator", preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, limit))
    job.start("agent")
    process = job.write(1, rank=0, events=30_000, bytes=1 << 17, wait_ms=LOSSLESS)
    wait_for(lambda: "cannot write the journal" in job.said("aggregator"), "the complaint")
    # when there is room again,
    resource.prlimit(aggregator.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    process.wait()
    end(job)
    # then everything is there, and it was said once.
    assert_exactly_once(job.run(), 1, 30_000)
    assert job.said("aggregator").count("cannot write the journal") == 1


def test_a_torn_journal_and_a_corrupt_part(make_job: MakeJob) -> None:
    job = make_job(agent={**QUICK, "batch_events": 1_000}, aggregator={"roll_rows": 4_000})
    job.start("aggregator")
    job.start("agent")
    process = job.write(1, rank=0, events=25_000, rate=50_000, wait_ms=LOSSLESS, linger_ms=60_000)
    wait_until_stored(job, 1, 25_000)
    parts = wait_for(lambda: sorted(job.run_dir.glob("events/part-*.parquet"))[1:], "two parts")
    job.kill("aggregator")
    # A part whose end is damaged; and the journal ends with a frame that was never finished.
    os.truncate(parts[0], parts[0].stat().st_size - 10)
    last = segments(job.run_dir / "journal")[-1]
    with last.open("ab") as file:
        file.write(b"\xff\x00\x00\x00half a frame")
    job.start("aggregator")
    process.kill()
    end(job)
    run = job.run()
    assert run.info["losses"]["skipped_parts"] == 1
    assert parts[0].with_suffix(".corrupt").exists()
    # What it held is told as missing, to the byte; all the rest is there once.
    numbers = stored_numbers(run, 1)
    missing = 25_000 - len(numbers)
    assert missing > 0
    assert len(np.unique(numbers)) == len(numbers)
    assert run.info["losses"]["missing_bytes"] == missing * EVENT_BYTES


def test_what_lies_behind_a_damaged_place_of_a_ring_is_counted(make_job: MakeJob) -> None:
    job = make_job(agent=QUICK)
    job.start("aggregator")
    job.start("agent")
    process = job.write(1, rank=0, events=1_000, bytes=1 << 20, linger_ms=60_000)
    wait_until_stored(job, 1, 1_000)
    # The program writes over the ring's head, at the first of its cache lines that holds it.
    head = job.head(1).to_bytes(8, "little")
    with job.ring_file(1).open("r+b") as ring:
        header = ring.read(4096)
        ring.seek(next(at for at in range(0, 4096, 64) if header[at : at + 8] == head))
        ring.write((1 << 50).to_bytes(8, "little"))
    wait_for(lambda: "is damaged and read no further" in job.said("agent"), "the agent to notice")
    process.kill()
    end(job)
    run = job.run()
    assert_exactly_once(run, 1, 1_000)
    assert run.info["losses"]["damaged_rings"] == 1
    # No ring holds more than its capacity that was not read.
    assert run.info["losses"]["missing_bytes"] == 1 << 20
    assert process_entry(run, 1)["written_to"] == process_entry(run, 1)["stored_to"] + (1 << 20)
    assert "missing_bytes 1,048,576" in (job.run_dir / "summary.txt").read_text()


def test_sigterm_finishes_with_what_is_there(make_job: MakeJob) -> None:
    job = make_job(agent=QUICK)
    job.start("aggregator")
    job.start("agent")
    job.write(1, rank=0, events=1_000, linger_ms=60_000)
    wait_until_stored(job, 1, 1_000)
    job.services["aggregator"].terminate()
    job.wait("aggregator")
    assert_exactly_once(job.run(), 1, 1_000)
    assert job.run().info["finished"] is True


def test_sigterm_while_the_per_device_files_are_written_leaves_none_half(make_job: MakeJob) -> None:
    """As the supervisor does it at the second Ctrl-C. The verdict has been said by then."""
    job = make_job(agent=QUICK, config={"ring_mib": 1, "format": "db", "format_given": True})
    job.start("aggregator")
    job.start("agent")
    job.write(1, rank=0, events=400_000, wait_ms=LOSSLESS)
    wait_until_stored(job, 1, 400_000)
    job.finish()
    begun = "msmemscope_*_ascend/device_*/dump/.memscope_dump_*.part"
    wait_for(lambda: list(job.output.glob(begun)), "a file that is being written")
    job.services["aggregator"].terminate()
    assert job.wait("aggregator") == 0
    assert list(job.output.rglob("*memscope_dump_*")) == []
    assert list(job.output.rglob("device_*")) == []
    said = job.said("aggregator")
    assert said.index("msMemScope") < said.index("interrupted: 0 db files are whole")
    assert f"msmemscope export {job.run_dir} --format db" in said
    assert job.run().info["finished"] is True


def test_a_run_whose_aggregator_never_came_back_is_recovered(make_job: MakeJob) -> None:
    job = make_job(agent=QUICK, aggregator={"roll_rows": 2_000})
    job.start("aggregator")
    job.start("agent")
    process = job.write(1, rank=0, events=5_000, rate=10_000, wait_ms=LOSSLESS, linger_ms=60_000)
    wait_until_stored(job, 1, 5_000)
    with pytest.raises(MemscopeError, match="in use by another aggregator"):
        recover(job.run_dir)
    job.kill("aggregator")
    job.kill("agent")
    process.kill()
    before = json.loads((job.run_dir / "run.json").read_text())
    before["versions"]["torch"] = "0.1"  # who recovers a run may have another
    (job.run_dir / "run.json").write_text(json.dumps(before))
    assert recover(job.run_dir) is True
    assert_exactly_once(job.run(), 1, 5_000)
    after = job.run().info
    assert after["finished"] is True
    assert before["program"] == ["train.py"]
    for name in ("session", "config", "program", "hosts", "mode", "started_wall_ns", "version", "versions"):
        assert after[name] == before[name], name
    assert recover(job.run_dir) is False


def test_nothing_recorded_leaves_nothing(make_job: MakeJob) -> None:
    job = make_job()
    job.start("aggregator")
    job.start("agent")
    job.finish()
    assert job.wait("agent") == 0
    assert job.wait("aggregator") == 0
    assert not job.run_dir.exists()


def test_usage_is_sampled(make_job: MakeJob) -> None:
    job = make_job(agent={**QUICK, "usage_s": 0.02, "usage_renew_s": 0})
    job.start("aggregator")
    job.start("agent")
    process = job.write(1, rank=0, events=100, linger_ms=60_000)

    def samples() -> int:
        return sum(path.read_bytes().count(b"usage") for path in segments(job.run_dir / "journal"))

    wait_for(lambda: samples() >= 5, "five samples")
    process.kill()
    end(job)
    usage = job.run().usage()
    assert usage.num_rows >= 3
    assert len(set(usage["ts"].to_pylist())) == usage.num_rows
    assert min(usage["rss"].to_pylist()) > 100_000
    assert set(usage["pid"].to_pylist()) == {process.pid}
    assert set(usage["rank"].to_pylist()) == {0}


def asleep(job: Job, ring: int) -> bool:
    """Has the agent told this ring's writer that it sleeps?"""
    reader = RingReader(str(job.ring_file(ring)))
    told = bool(reader.header()["asleep"])
    reader.close()
    return told


def wakes(pid: int) -> int:
    """How often a process has gone to sleep so far."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("\nvoluntary_ctxt_switches:")[2].split()[0])


def test_waiting_costs_an_agent_next_to_nothing(make_job: MakeJob) -> None:
    job = make_job()
    job.start("aggregator")
    agent = job.start("agent")
    process = job.write(1, rank=0, events=100, linger_ms=10**6)
    wait_for(lambda: asleep(job, 1), "the agent to see that nothing is going on")

    before, begun = wakes(agent.pid), time.monotonic()
    wait_for(lambda: time.monotonic() - begun > 3, "three seconds")
    # Ten samples of memory use a second, two looks at the directory, a ping and its answer.
    assert (wakes(agent.pid) - before) / (time.monotonic() - begun) < 25
    process.kill()
    end(job)


def test_a_sleeping_agent_is_woken_by_a_writer_that_runs_ahead(make_job: MakeJob) -> None:
    # Given an agent that would sleep a minute, and a writer that paused,
    job = make_job(agent={"idle_s": 60, "usage_s": 60})
    job.start("aggregator")
    agent = job.start("agent")
    process = job.write(1, rank=0, events=400_000, rate=40_000, bytes=16 << 20)
    wait_for(lambda: job.head(1) > 100 * EVENT_BYTES, "a beginning")
    process.send_signal(signal.SIGSTOP)
    seen = [(wakes(agent.pid), time.monotonic())]

    def still() -> bool:
        if wakes(agent.pid) != seen[-1][0]:
            seen.append((wakes(agent.pid), time.monotonic()))
        return asleep(job, 1) and time.monotonic() - seen[-1][1] > 1.5

    wait_for(still, "the agent to fall asleep")
    # when it goes on, with more than its ring holds,
    process.send_signal(signal.SIGCONT)
    assert process.communicate()[0] == "committed 400000\n"
    end(job)
    # then nothing was lost.
    assert_exactly_once(job.run(), 1, 400_000)


def test_the_agent_imports_nothing_heavy() -> None:
    heavy = "{'numpy', 'pyarrow', 'pandas', 'torch'}"
    code = f"import sys, msmemscope.collect.agent.loop as _; print({heavy} & set(sys.modules))"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    assert subprocess.check_output([sys.executable, "-c", code], env=environment, text=True).strip() == "set()"


def test_events_whose_tables_are_deleted_meanwhile_are_counted(make_job: MakeJob) -> None:
    job = make_job(agent=QUICK, aggregator={"roll_rows": 20_000})
    job.start("aggregator")
    job.start("agent")
    process = job.write(1, rank=0, events=200_000, rate=20_000, wait_ms=LOSSLESS)
    # Of the newest table the rows may still be in memory, from where they are stored again.
    wait_for(lambda: len(list(job.run_dir.glob("events/part-*.parquet"))) > 1, "two tables")
    shutil.rmtree(job.run_dir, ignore_errors=True)  # also one that comes in between
    process.wait()
    end(job)
    run = job.run()
    numbers = stored_numbers(run, 1)
    lost = run.info["losses"]["deleted_events"]
    assert lost >= 20_000
    assert len(np.unique(numbers)) == len(numbers) == 200_000 - lost
    assert run.info["losses"]["missing_bytes"] >= lost * EVENT_BYTES
    assert job.said("aggregator").count("was deleted") == 1


class Unread:
    """A way to a shard, with or without answers that nobody has taken yet."""

    def __init__(self) -> None:
        self.waiting = True
        self.connected = 0

    def connect(self) -> None:
        self.connected += 1

    def send(self, data: bytes) -> None:
        pass

    def has_answers(self) -> bool:
        return self.waiting

    def wait(self, files: Collection[int], ms: int) -> Collection[int]:
        return ()

    def answers(self) -> Iterator[bytes]:
        return iter(())

    def close(self) -> None:
        pass


def test_an_agent_that_has_no_time_for_answers_does_not_call_the_aggregator_silent(make_job: MakeJob) -> None:
    job = make_job(agent={"silence_s": 0.2})
    link = Unread()
    agent = Agent(job.dir, job.session, link)
    late = time.monotonic() + 1.0
    agent._timers(late)
    assert link.connected == 0
    link.waiting = False
    agent._timers(late)
    assert link.connected == 1


def test_two_thousand_processes_that_ended_at_once_are_told_over_one_connection(make_job: MakeJob) -> None:
    rings = 2000
    job = make_job(agent={}, aggregator={})
    job.write(1, events=10, bytes=65536).wait()
    whole = (job.dir / f"{1:016x}.ring").read_bytes()
    written = whole[: 4096 + 8192]
    for ring in range(2, rings + 1):
        with (job.dir / f"{ring:016x}.ring").open("wb") as file:
            file.write(written[:24] + ring.to_bytes(8, "little") + written[32:])
            file.truncate(len(whole))
    shard = Shard(job.run_dir, job.id)
    kinds: Counter[str] = Counter()
    with zmq.Context() as context, context.socket(zmq.ROUTER) as socket:
        socket.bind(job.session["endpoint"])
        job.finish()
        job.start("agent")
        while not shard.all_agents_left:
            assert socket.poll(1000 * LIMIT_S)
            agent, data = socket.recv_multipart()
            kinds[messages.unpack(data, job.id, messages.AGENT_TYPES)["type"]] += 1
            for answer in shard.answer(data):
                socket.send_multipart([agent, answer])
        assert job.wait("agent") == 0
    shard.close(LIMIT_S)
    assert kinds["hello"] == 1
    assert kinds["batch"] == rings
