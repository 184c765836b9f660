"""What the judge promises, on small samples of the corpus; `make corpus` measures it (docs/verdicts.md)."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from corpus import families
from corpus.families import NEVER, Case, Family
from msmemscope.analysis.verdict.claims import CANDIDATE, GROWTH, LEAK, LEVEL, Claim
from msmemscope.analysis.verdict.judge import judge, several, worth_judging
from msmemscope.analysis.verdict.sums import merge

LENGTHS = (20, 40, 100)
CASES = 16
SEED = 11
# Of two runs' mean life there may be no death at all in 20 steps, of two blocks an epoch none in ten, and of two in
# three times 20 look-ups for 512 shapes none finds one that was there.
HARD = ("mean 2 run", "an epoch", "groups of 8", "8 x 64")


def decidable(family: Family) -> bool:
    return "undecidable" not in family.name


@cache
def claims(name: str, steps: int) -> list[tuple[Case, Claim | None]]:
    (family,) = (one for one in families.CLEAN + families.LEAKS if one.name == name)
    cases = [case for case in families.cases(family, steps, CASES, SEED) if case.counts or not decidable(family)]
    return [(case, judge(families.statistics(case))) for case in cases]


def kinds(name: str, steps: int) -> Counter[str]:
    return Counter("nothing" if claim is None else claim.kind for _, claim in claims(name, steps))


# --- promises -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [family.name for family in families.CLEAN if decidable(family)])
def test_a_program_without_a_leak_is_not_called_leaking(name: str):
    false = sum(kinds(name, steps)[LEAK] for steps in LENGTHS if steps >= 40 or "epoch" not in name)
    assert false <= (1 if any(hard in name for hard in HARD) else 0)


SURE = [
    "constant",
    "share 0.5 (1 of 2)",
    "share 0.1 (1 of 10)",
    "share 0.01 (1 of 100)",
    "tiny share (1 of 300)",
    "every k steps",
    "from step s on",
    "growing",
    "beside a deque",
    "beside a sawtooth",
]


@pytest.mark.parametrize("name", SURE)
def test_a_steady_leak_is_found_from_12_leaking_steps_on(name: str):
    for steps in (12, *LENGTHS):
        found = kinds(name, steps)
        if steps == 12 and name == "beside a sawtooth":
            continue  # of twelve steps the oldest six have nothing but the leak left
        assert found[LEAK] == found.total()


@pytest.mark.parametrize(("name", "steps", "least"), [
    ("churn, exponential", 20, 0.7), ("churn, exponential", 40, 0.9), ("churn, lognormal", 40, 0.8),
    ("share 0.5 by chance of 8", 100, 0.7), ("share 0.1 by chance of 20", 100, 0.7),
    ("epoch, evaluation steps", 40, 0.9), ("random steps, 0.3", 400, 0.3),
])  # fmt: skip
def test_leaks_that_chance_hides_are_found_in_time(name: str, steps: int, least: float):
    found = kinds(name, steps)
    assert found[LEAK] >= least * found.total()
    assert steps < 40 or found[LEAK] + found[GROWTH] == found.total()


def test_confidence_means_what_it_says():
    names = [family.name for family in families.CLEAN + families.LEAKS if decidable(family)]
    sure = [
        case.is_leak
        for name in names
        for steps in LENGTHS
        if steps >= 40 or "epoch" not in name
        for case, claim in claims(name, steps)
        if claim is not None and claim.kind == LEAK and claim.confidence >= 0.9
    ]
    assert len(sure) > 300
    assert sum(sure) >= 0.98 * len(sure)


@pytest.mark.parametrize("bound", [20, 50, 200])
def test_a_bounded_container_is_no_leak_from_its_first_drop_on(bound: int):
    """And growth only as long as its level has not stood still for a third of the run."""
    for after in (0, 1, 2, 5, 20, 60, 100, 200):
        rng = np.random.default_rng([bound, after])
        queue = judge(families.statistics(families.container(bound, after, rng, zipf=False)))
        lru = judge(families.statistics(families.container(bound, after, rng, zipf=True)))
        assert all(claim is None or claim.kind in (GROWTH, LEVEL) for claim in (queue, lru))
        if 2 * after > bound + 40:
            assert queue is not None
            assert (queue.kind, queue.first_step) == (LEVEL, bound)


# --- what is said ---------------------------------------------------------------------------------------------------


def blocks(steps: int, *parts: tuple[int, int, int, int]) -> Case:
    """Parts of (first step, last step, life in steps or 0 for ever, bytes): a block at each step."""
    made = [
        (at, at + life if life else int(NEVER), size)
        for first, last, life, size in parts
        for at in range(first, last + 1)
    ]
    birth, death, size = (np.array(column, np.int64) for column in zip(*made, strict=True))
    return Case(steps, birth, death, size, death > steps)


def said(case: Case) -> Claim:
    claim = judge(families.statistics(case))
    assert claim is not None
    return claim


def test_a_leak_is_stated_in_steps_and_bytes():
    claim = said(blocks(40, (5, 40, 0, 4096), (1, 40, 1, 4096)))
    assert (claim.kind, claim.first_step, claim.last_step) == (LEAK, 5, 40)
    assert (claim.bytes_per_step, claim.bytes, claim.blocks) == (4096, 36 * 4096, 36)
    assert claim.share[0] == pytest.approx(0.5, abs=0.05)
    assert claim.share[1] < claim.share[0] < claim.share[2]
    assert claim.reason.startswith("no block older than a step was ever freed, and a container of more than")


def test_a_container_that_dropped_nothing_yet_is_admitted():
    claim = said(blocks(40, (1, 40, 0, 512)))
    assert "no block of it was ever freed" in claim.reason
    assert claim.confidence < 0.95


def test_growth_says_what_would_decide_it():
    irregular = families.cases(next(f for f in families.LEAKS if f.name == "random steps, 0.3"), 100, 1, 5)[0]
    claim = said(irregular)
    assert claim.kind == GROWTH
    assert claim.reason == "a cache that is still filling looks the same"
    assert claim.outlook().endswith("more steps would tell")
    assert claim.outlook("window of 10 s", "windows of 10 s").endswith("more windows of 10 s would tell")


@pytest.mark.parametrize("lengths", [20, 200])
def test_sizes_that_come_again_are_those_of_a_leak(lengths: int):
    """From the third repetition on: a cache with an entry for each size would have found the first."""
    rng = np.random.default_rng(lengths)
    sizes = (rng.integers(1, lengths + 1, 400)) * 4096
    repeated = np.array([len(np.unique(sizes[:n])) for n in range(1, 401)])
    third = int(np.argmax(np.arange(1, 401) - repeated >= 3)) + 1
    birth = np.arange(1, 401)
    case = Case(400, birth, np.full(400, NEVER), sizes, np.ones(400, bool))
    assert said(families.until(case, max(third + 8, 12))).kind == LEAK
    if third > 24:
        claim = said(families.until(case, third - 8))
        assert (claim.kind, claim.reason) == (
            GROWTH,
            "its blocks have many sizes: a cache with an entry for each looks the same",
        )


def test_sizes_that_never_come_again_are_a_leak_from_68_blocks_on_and_that_is_promised():
    birth = np.arange(1, 201)
    sizes = (np.random.default_rng(5).permutation(2000)[:200] + 1) * 512
    case = Case(200, birth, np.full(200, NEVER), sizes, np.ones(200, bool))
    kinds = {n: said(families.until(case, n)).kind for n in (24, 40, 66, 73)}
    assert kinds == {24: GROWTH, 40: GROWTH, 66: GROWTH, 73: LEAK}
    for at in (24, 40, 60):
        wait = said(families.until(case, at)).steps_to_decide
        assert wait is not None
        assert at + wait == pytest.approx(70, abs=6)


def test_a_promise_is_what_the_judge_says_of_the_site_continued():
    """Random steps: most promises come true within half as much again, and none is beyond all measure."""
    family = next(f for f in families.LEAKS if f.name == "share 0.5 by chance of 8")
    waited, promised = [], []
    for case in families.cases(family, 1000, 12, 5):
        claim = said(families.until(case, 24))
        if claim.kind != GROWTH or claim.steps_to_decide is None:
            continue
        promised.append(claim.steps_to_decide)
        later = (n for n in range(1, 900, 3) if said(families.until(case, 24 + n)).kind == LEAK)
        waited.append(next(later))
    ratios = np.array(waited) / np.array(promised)
    assert len(ratios) >= 8
    assert (ratios <= 1.5).mean() >= 0.6
    assert np.median(ratios) >= 0.4


@pytest.mark.parametrize("at", [44, 64, 72, 82])
def test_what_comes_in_epochs_is_decided_when_the_epochs_have_shown_a_rhythm(at: int):
    """Five steps at the end of each epoch of 22 keep a block each: from two epochs on that is gone by."""
    birth = np.concatenate([np.arange(18, 23) + 22 * n for n in range(10)])
    case = Case(220, birth, np.full(50, NEVER), np.full(50, 4096), np.ones(50, bool))
    claim = said(families.until(case, at))
    assert claim.kind == GROWTH
    assert "free" not in claim.reason  # nothing was
    later = ((n, judge(families.statistics(families.until(case, n)))) for n in range(at, 220))
    first = next(n for n, one in later if one is not None and one.kind == LEAK)
    assert claim.steps_to_decide == pytest.approx(first - at, abs=3)


def test_one_cluster_says_nothing_of_the_next():
    claim = said(blocks(24, (15, 22, 0, 4096)))
    assert (claim.kind, claim.reason, claim.steps_to_decide) == (GROWTH, "nothing new was kept of late", None)


def test_a_leak_of_ever_new_sizes_admits_the_cache_that_looks_the_same():
    sizes = (np.random.default_rng(5).permutation(2000)[:100] + 1) * 512
    claim = said(Case(100, np.arange(1, 101), np.full(100, NEVER), sizes, np.ones(100, bool)))
    assert claim.kind == LEAK
    assert claim.reason.endswith("and a cache with an entry for each of many more than 1,024 sizes looks the same")


def test_growth_by_replacement_is_growth():
    steps = np.arange(1, 41)
    claim = said(Case(40, steps, steps + 1, steps * 4096, np.zeros(40, bool)))
    assert (claim.kind, claim.reason) == (GROWTH, "larger blocks replace smaller ones")
    assert claim.bytes_per_step == pytest.approx(4096, rel=0.1)


def test_a_queue_whose_consumer_is_slow_is_growth():
    birth = np.arange(1, 101)
    claim = said(
        Case(100, birth, np.where(2 * birth <= 100, 2 * birth, NEVER), np.full(100, 4096), np.zeros(100, bool))
    )
    assert claim.kind == GROWTH
    assert claim.bytes_per_step == pytest.approx(2048, rel=0.5)


def test_what_has_levelled_off_says_since_when():
    claim = said(blocks(80, (1, 30, 0, 4096)))
    assert (claim.kind, claim.first_step, claim.bytes) == (LEVEL, 30, 30 * 4096)
    assert claim.reason == "level since step 30"


def test_what_began_just_now_is_too_new():
    claim = said(blocks(60, (45, 60, 0, 4096), (1, 60, 1, 4096)))
    assert (claim.kind, claim.first_step) == (GROWTH, 45)
    assert "too new to tell" in claim.reason
    assert claim.steps_to_decide is not None
    then = 60 + claim.steps_to_decide
    assert said(blocks(then, (45, then, 0, 4096), (1, then, 1, 4096))).kind == LEAK


def test_what_was_handed_from_step_to_step_and_then_kept_is_a_leak():
    """Ten steps that free what the step before made, and then a list: nothing was cleared."""
    claim = said(blocks(29, (1, 10, 1, 4096), (11, 29, 0, 4096)))
    assert (claim.kind, claim.first_step) == (LEAK, 11)


def test_a_short_run_has_candidates():
    claim = said(blocks(5, (1, 5, 0, 4096)))
    assert (claim.kind, claim.bytes_per_step, claim.bytes) == (CANDIDATE, 4096, 5 * 4096)
    assert said(blocks(9, (1, 9, 0, 4096))).kind == CANDIDATE
    assert said(blocks(12, (1, 12, 0, 4096))).kind == LEAK
    assert judge(families.statistics(blocks(5, (1, 4, 0, 4096)))) is None


@pytest.mark.parametrize("epochs", [4, 5, 6])
def test_the_last_epoch_may_lie_in_the_open_step(epochs: int):
    """What it allocates is not judged, and not taken for freed, but births go on."""
    birth = np.repeat(np.arange(30, 30 * (epochs - 1) + 1, 30), 8)
    case = Case(
        30 * epochs - 1, birth, np.full(len(birth), NEVER), np.full(len(birth), 4096), np.ones(len(birth), bool)
    )
    stats = families.statistics(case)
    claim = judge(replace(stats, open_blocks=8, open_bytes=8 * 4096))
    assert claim is not None
    assert (claim.kind, claim.bytes_per_step) == (LEAK, 8 * 4096 / 30)
    if epochs == 4:
        without = judge(stats)
        assert without is not None
        assert (without.kind, without.reason) == (GROWTH, "kept only 3 times so far")


# --- sums -----------------------------------------------------------------------------------------------------------


def test_split_and_merged_sums_give_the_same_claims():
    for family in families.CLEAN + families.LEAKS:
        for case in families.cases(family, 40, 2, SEED):
            odd = np.arange(len(case.birth)) % 2 == 1
            parts = [
                families.sums(
                    replace(case, **{name: getattr(case, name)[half] for name in ("birth", "death", "size", "leaked")})
                )
                for half in (odd, ~odd)
            ]
            merged = judge(merge(parts).site(0))
            whole = judge(families.sums(case).site(0))
            assert merged == whole


def test_a_thinned_axis_decides_alike():
    """400 steps in cells of four: no clean family leaks, and steady leaks are found."""
    for family in families.CLEAN + families.LEAKS:
        if not decidable(family) or any(hard in family.name for hard in HARD):
            continue
        for case in families.cases(family, 400, 3, SEED):
            claim = judge(families.sums(case, 4).site(0))
            leak = claim is not None and claim.kind == LEAK
            if case.counts and not case.is_leak:
                assert not leak, family.name
            if family.name in SURE:
                assert leak, family.name
                assert claim is not None
                rate = case.size[case.leaked].sum() / (400 - case.birth[case.leaked].min() + 1)
                assert claim.bytes_per_step == pytest.approx(rate, rel=0.1)


def test_the_screen_loses_no_claim():
    for steps in LENGTHS:
        for family in families.CLEAN + families.LEAKS:
            if steps < family.least:
                continue
            all_stats = [families.statistics(case) for case in families.cases(family, steps, 4, SEED)]
            kept = worth_judging(np.array([stats.level_bytes for stats in all_stats]))
            for stats, worth in zip(all_stats, kept, strict=True):
                claim = judge(stats)
                assert worth or claim is None or claim.kind == LEVEL


def test_of_many_sites_few_are_named_by_chance():
    """Of 2,000 sites with a p value that 1 in 200 clean ones has, those must not stand."""
    leak = said(blocks(40, (1, 40, 0, 4096)))
    chance = [replace(leak, p_value=p) for p in np.random.default_rng(3).random(2000)]
    kept = several([leak, *chance, None])
    assert kept[0]
    assert sum(kept[1:]) == 0
