"""How often a rank is a candidate that does nothing of its own, in groups that made few steps.

``python benchmarks/peers_of_few_steps.py [GROUPS]``: for each way in which clean ranks differ and each number of steps,
the percentage of groups of 2 to 64 ranks in which one is told to use more.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from msmemscope.analysis.peer_use import Use
from msmemscope.analysis.peers import PeerOptions, excesses
from msmemscope.vocabulary import DeviceType, Pool

MIB = 1 << 20
KEPT = 1024  # MiB that each rank keeps
RANKS = (2, 3, 4, 5, 8, 16, 64)
STEPS = (3, 5, 7)

Floats = npt.NDArray[np.float64]
Levels = tuple[Floats, Floats]  # peaks and ends, MiB, shape (ranks, steps)
Way = Callable[[np.random.Generator, int, int], Levels]


def lengths(rng: np.random.Generator, ranks: int, steps: int) -> Levels:
    return KEPT + 2.0 * rng.integers(64, 512, (ranks, steps)), np.full((ranks, steps), float(KEPT))


def long_tail(rng: np.random.Generator, ranks: int, steps: int) -> Levels:
    return KEPT + 200 * rng.lognormal(0, 0.7, (ranks, steps)), np.full((ranks, steps), float(KEPT))


def warming_up(rng: np.random.Generator, ranks: int, steps: int) -> Levels:
    peaks = KEPT + 1.0 * rng.integers(64, 512, (ranks, steps))
    peaks[:, :1] += rng.integers(1, 600, (ranks, 1))
    return peaks, np.full((ranks, steps), float(KEPT))


def pieces(rng: np.random.Generator, ranks: int, steps: int) -> Levels:
    kept = 1.0 * rng.choice([0, 0, 0, 20, 40, 60], (ranks, 1))
    return KEPT + 300 + kept + rng.normal(0, 5, (ranks, steps)), KEPT + kept + np.zeros((ranks, steps))


def apart(share: float) -> Way:
    """What ranks keep has this standard deviation."""

    def levels(rng: np.random.Generator, ranks: int, steps: int) -> Levels:
        kept = rng.normal(0, share, (ranks, 1)) * KEPT
        peaks = 1.3 * KEPT + kept + rng.normal(0, 0.01, (ranks, steps)) * KEPT
        return peaks, KEPT + kept + np.zeros((ranks, steps))

    return levels


WAYS: dict[str, Way] = {
    "lengths": lengths,
    "long tail": long_tail,
    "warming up": warming_up,
    "pieces": pieces,
    "2 % apart": apart(0.02),
    "5 % apart": apart(0.05),
}


def use_of(peaks: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]) -> Use:
    late = ends[-max(len(ends) // 4, 1) :]
    return Use(
        peak=int(peaks.max()),
        end=int(np.median(late)),
        reserved=int(peaks.max()),
        peak_swing=int(peaks.max() - np.median(peaks)),
        end_swing=int(late.max() - late.min()),
        least=(int(peaks.min()), int(ends.min()), int(peaks.min())),
        devices=(0,),
    )


def has_candidate(levels: Levels) -> bool:
    peaks, ends = ((one * MIB).astype(np.int64) for one in levels)
    of_pool = {rank: use_of(*of_rank) for rank, of_rank in enumerate(zip(peaks, ends, strict=True))}
    uses = {(int(DeviceType.NPU), int(Pool.PTA)): of_pool}
    return any(one.is_more for one in excesses(list(of_pool), uses, PeerOptions(), has_few_steps=True))


def main() -> None:
    groups = int(sys.argv[1]) if len(sys.argv) > 1 else 400
    rng = np.random.default_rng(1)
    for name, way in WAYS.items():
        for steps in STEPS:
            shares = [
                100 * sum(has_candidate(way(rng, ranks, steps)) for _ in range(groups)) / groups for ranks in RANKS
            ]
            told = ", ".join(f"{ranks} ranks {share:.2f} %" for ranks, share in zip(RANKS, shares, strict=True))
            print(f"{name}, {steps} steps: {told}", flush=True)


if __name__ == "__main__":
    main()
