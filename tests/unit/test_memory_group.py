"""The control group that limits a process most, of either version, in trees like those of /sys/fs/cgroup."""

from __future__ import annotations

from pathlib import Path

import pytest

from msmemscope.collect.agent.memory_group import memory_group

PID = 4711


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    (tmp_path / "proc" / str(PID)).mkdir(parents=True)
    return tmp_path / "proc"


def group(place: Path, **files: str | int) -> None:
    place.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (place / name.replace("__", ".")).write_text(f"{text}\n")


def found(tmp_path: Path, proc: Path, lines: str) -> tuple[int | None, int | None, int] | None:
    (proc / str(PID) / "cgroup").write_text(lines)
    one = memory_group(PID, root=tmp_path / "cgroup", proc=proc)
    return None if one is None else (one.limit, one.used, one.kills)


def test_the_smallest_limit_on_the_way_up_counts(tmp_path: Path, proc: Path) -> None:
    root = tmp_path / "cgroup"
    group(root)
    group(root / "pod", memory__max=1000, memory__current=700, memory__events="low 0\noom 3\noom_kill 2")
    group(root / "pod" / "job", memory__max="max", memory__current=600, memory__events="oom_kill 1")
    group(root / "pod" / "job" / "step", memory__max=5000, memory__current=500, memory__events="oom_kill 0")

    assert found(tmp_path, proc, "0::/pod/job/step\n") == (1000, 700, 2)


def test_the_older_version_has_its_own_tree_and_names(tmp_path: Path, proc: Path) -> None:
    root = tmp_path / "cgroup" / "memory"
    no_limit = 9223372036854771712
    control = "oom_kill_disable 0\nunder_oom 0\noom_kill 4"
    group(root, memory__limit_in_bytes=no_limit, memory__usage_in_bytes=99)
    group(root / "a", memory__limit_in_bytes=800, memory__usage_in_bytes=80, memory__oom_control=control)

    assert found(tmp_path, proc, "5:cpu,cpuacct:/elsewhere\n4:memory:/a\n0::/\n") == (800, 80, 4)
    assert found(tmp_path, proc, "4:memory:/\n") is None


def test_files_that_the_kernel_caches_are_not_used(tmp_path: Path, proc: Path) -> None:
    place = tmp_path / "cgroup" / "pod"
    stat = "anon 5\nfile 450\ninactive_file 300\nactive_file 100"
    group(place, memory__max=1000, memory__current=900, memory__stat=stat)
    assert found(tmp_path, proc, "0::/pod\n") == (1000, 500, 0)
    old = tmp_path / "cgroup" / "memory" / "a"
    stat = "inactive_file 1\ntotal_inactive_file 30\ntotal_active_file 10"
    group(old, memory__limit_in_bytes=800, memory__usage_in_bytes=80, memory__stat=stat)
    assert found(tmp_path, proc, "4:memory:/a\n") == (800, 40, 0)


def test_within_a_container_the_groups_name_is_not_its_path(tmp_path: Path, proc: Path) -> None:
    group(tmp_path / "cgroup", memory__max=300, memory__current=30)

    assert found(tmp_path, proc, "0::/docker/af01\n") == (300, 30, 0)
    assert found(tmp_path, proc, "0::/../../other\n") == (300, 30, 0)


def test_without_a_limit_or_a_process_there_is_none(tmp_path: Path, proc: Path) -> None:
    group(tmp_path / "cgroup" / "a", memory__max="max", memory__current=1)

    assert found(tmp_path, proc, "0::/a\n") is None
    assert memory_group(PID + 1, root=tmp_path / "cgroup", proc=proc) is None
