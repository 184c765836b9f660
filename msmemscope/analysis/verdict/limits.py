"""Every threshold of the verdict. How they were set, and what each of them costs: docs/verdicts.md."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Chances are significance levels; steps and events are counts."""

    fewest: int = 3
    """Complete steps after the start, in each of which something is kept, for a candidate."""
    min_steps: int = 6
    """The same for growth."""
    few_steps: int = 12
    """Below, what kept something in each step and is no leak yet is a candidate."""
    old_enough: int = 100
    """Steps that kept something, from which on growth that began in the last third of the run is not too new."""
    sustained: float = 0.3
    """Largest p value of the follow-up at which a regular supply alone is growth."""
    min_events: int = 4
    """Steps (or epochs) in which blocks that stay were born, for a leak."""
    lives: float = 2.0
    """Mean life, in runs, that the watching must be able to refute."""
    alpha_regular: float = 0.11
    """Of that test where births are strictly regular and no old block was ever freed, or the tail test shows that the
    deaths are those of other blocks. 12 blocks in 12 steps, watched from an age of 2 on, reach 0.101."""
    alpha: float = 0.005
    """Of that test otherwise."""
    alpha_tail: float = 0.01
    """Of the test that the hazard falls faster than any law with increasing generalized failure rate."""
    alpha_filling: float = 0.01
    """Of the test against a cache that fills."""
    alpha_sizes: float = 0.11
    """Of the test against a cache with an entry for each size; as alpha_regular, for what passes is regular. Sizes that
    came again two or three times pass."""
    sizes: int = 1024
    """A judgement: entries of such a cache, as many as must be refuted where no two blocks have one size. It takes 68
    blocks."""
    clear_relief: int = 5
    """After a clearance of all that was held, this many times as many steps as before it make it history."""
    unfilled: float = 0.10
    """A judgement, not a measurement: share of the sites that keep all for two steps whose container is bounded or
    cleared later, per site that leaks. It keeps the confidence of a site that never freed an old block below 0.95 for
    130 steps."""
    largest: int = 10_000
    """Most steps such a container is thought to take until it is full."""
    watched_doubt: float = 0.1
    """Weight of the follow-up's p value in the doubt: the prior odds of lives as long as two runs."""
    follows: float = 0.4
    """Least rise of the level, relative to what the births that stay promise."""


LIMITS = Limits()
