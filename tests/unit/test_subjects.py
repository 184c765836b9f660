"""Who is judged: ranks by evidence, other processes by their own name, workers with whom they work for."""

from __future__ import annotations

import pytest
from fake_run import process

from msmemscope.analysis.findings import note_about
from msmemscope.analysis.subjects import find_subjects, name_of, who_cells
from msmemscope.tables.process import Process


def command(*words: str) -> str:
    return "\u241f".join(words)


def plain(ring: int, **fields: object) -> Process:
    """A process that is no rank."""
    return process(ring, **({"rank": None, "world_size": -1, "pid": 100 + ring} | fields))


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (("/usr/bin/python3", "-u", "/home/me/train.py", "--lr", "1"), "train.py"),
        (("python", "-X", "dev", "-W", "ignore", "train.py"), "train.py"),
        (("python3.11", "-m", "verl.trainer.main_ppo", "a=b"), "verl.trainer.main_ppo"),
        (("python", "-c", "import torch"), "python -c"),
        (("python", "-c", "from multiprocessing.spawn import spawn_main; spawn_main()", "--multiprocessing-fork"), ""),
        (("python",), "python"),
        (("/opt/bin/python3",), "python3"),
        (("/opt/infer/server", "--port", "1"), "server"),
        (("VLLM::EngineCore",), "VLLM::EngineCore"),
        (("ray::WorkerDict.actor_rollout_generate()",), "ray::WorkerDict.actor_rollout_generate()"),
        (("nginx: worker process",), "nginx: worker process"),
        ((), "prog"),
    ],
)
def test_a_process_is_called_what_it_calls_itself(words: tuple[str, ...], name: str) -> None:
    assert name_of(plain(1, command=command(*words), program="/usr/bin/prog")) == name


def test_ranks_are_ranks_and_come_first() -> None:
    found = find_subjects([plain(1, program="launch.sh"), process(2, rank=1), process(3, rank=0)], {1: 9, 2: 9})
    assert [one.label for one in found] == ["rank 0", "rank 1", "launch.sh [pid 101]"]
    assert found.ranks == (0, 1)
    assert found.of(1).label == "rank 1"


def test_one_plain_program_needs_no_pid() -> None:
    (found,) = find_subjects([plain(1)], {0: 3})
    assert (found.rank, found.label, found.key) == (None, "train.py", "train.py")


def test_workers_belong_to_whom_they_work_for() -> None:
    spawned = command("python", "-c", "from multiprocessing.spawn import spawn_main")
    same = command("python", "train.py")
    processes = [
        plain(1, command=same),
        plain(2, command=same, parent_ring=1),  # forked
        plain(3, command=spawned, parent_ring=1),
        plain(4, command=spawned, parent_ring=3),
    ]
    (found,) = find_subjects(processes, {0: 30})
    assert found.members == (0, 1, 2, 3)
    assert found.label == "train.py"


def test_a_child_with_a_name_or_with_steps_is_itself() -> None:
    """vLLM's server starts an engine core, which starts its workers; a script starts trainers by fork."""
    names = ("python\u241fserve.py", "VLLM::EngineCore", "VLLM::Worker_TP0", "VLLM::Worker_TP1")
    chain = [plain(n + 1, command=name, parent_ring=min(n, 2)) for n, name in enumerate(names)]
    assert [one.name for one in find_subjects(chain, {})] == [
        "serve.py [pid 101]",
        "VLLM::EngineCore [pid 102]",
        "VLLM::Worker_TP0 [pid 103]",
        "VLLM::Worker_TP1 [pid 104]",
    ]
    trainers = [plain(1), plain(2, parent_ring=1), plain(3, parent_ring=1)]
    assert len(find_subjects(trainers, {1: 30, 2: 30})) == 3


def test_of_several_processes_with_one_rank_the_one_with_steps_is_it() -> None:
    processes = [process(1, pid=5, program="tokenize.py"), process(2, pid=6)]
    found = find_subjects(processes, {1: 30})
    assert [one.label for one in found] == ["rank 0", "tokenize.py [pid 5] of rank 0"]
    assert found.ranks == (0,)
    nobody = find_subjects(processes, {0: 30, 1: 30})
    assert [one.label for one in nobody] == ["tokenize.py [pid 5] of rank 0", "train.py [pid 6] of rank 0"]
    assert nobody.ranks == ()


def test_rows_name_a_rank_only_where_the_subject_is_one() -> None:
    processes = [process(1, rank=0), process(2, rank=3), process(3, rank=3)]
    found = find_subjects(processes, {0: 5, 1: 5, 2: 5})
    cells = [who_cells(found.of(number), one) for number, one in enumerate(processes)]
    assert [one["rank"] for one in cells] == [0, "", ""]
    assert [one["process"] for one in cells] == [found.of(number).name for number in range(3)]
    assert [one["pid"] for one in cells] == [one.pid for one in processes]


def test_attempts_of_a_rank_are_two_subjects() -> None:
    found = find_subjects([process(1), process(2, attempt=1, pid=200)], {0: 5, 1: 5})
    assert [(one.rank, one.attempt) for one in found] == [(0, 0), (0, 1)]


def test_a_note_names_a_restarted_rank_once() -> None:
    found = find_subjects([process(1, rank=0), process(2, rank=1), process(3, rank=1, attempt=1)], {})
    note = note_about("left_out", found, found.ranks)
    assert (note.ranks, note.count, note.scope) == ((0, 1), 2, "uniform")


def test_names_are_unique() -> None:
    """Containers count their pids each for itself, and a pid is given out again."""
    found = find_subjects([plain(1, pid=7), plain(2, pid=7, host="b"), plain(3, pid=7, host="b")], {})
    assert [one.name for one in found] == [
        "train.py [pid 7 on host-a]",
        "train.py [pid 7 on b]",
        "train.py [pid 7 on b] #2",
    ]


def test_children_without_a_name_are_called_after_their_parent() -> None:
    """What multiprocessing spawns has one command line, whatever it runs."""
    spawned = command("python", "-c", "from multiprocessing.spawn import spawn_main; spawn_main(7)")
    children = [plain(n, command=spawned, parent_ring=1, created_ns=n) for n in (4, 3)]
    grandchild = plain(5, command=spawned, parent_ring=3, created_ns=5)
    orphan = plain(6, command=spawned, parent_ring=99, created_ns=6)
    found = find_subjects([plain(1), *children, grandchild, orphan], dict.fromkeys(range(5), 30))
    assert {one.name for one in found} == {
        "train.py [pid 101]",
        "train.py child 1 [pid 103]",
        "train.py child 2 [pid 104]",
        "train.py child 1 child 1 [pid 105]",
        "python child 1 [pid 106]",
    }


def test_parents_in_a_circle_end() -> None:
    assert len(find_subjects([plain(1, parent_ring=2), plain(2, parent_ring=1)], {})) >= 1
