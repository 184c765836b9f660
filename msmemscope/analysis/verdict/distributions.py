"""Tails and quantiles of the distributions that the judge needs: Poisson, binomial, beta, gamma, normal.

scipy.special has them, but its import takes longer than the analysis of a run, and the product does not depend on it.
tests/unit/test_distributions.py holds the two against each other: relative errors are below 1e-10 for shapes up to 1e4
and below 1e-7 up to 1e6. A call costs some 10 us for shapes up to 100 and grows as their square root.

The continued fractions are those of Abramowitz & Stegun, Handbook of Mathematical Functions (1964), 6.5.31 and 26.5.8,
evaluated by Lentz's method (Applied Optics 15 (1976), 668-671).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from statistics import NormalDist

_TINY = 1e-300
_EPSILON = 1e-16
_MOST_TERMS = 1_000_000
_NORMAL = NormalDist()


def normal_tail(z: float) -> float:
    """P(Z >= z)."""
    return 0.5 * math.erfc(z / math.sqrt(2))


def normal_quantile(p: float) -> float:
    """The z with P(Z <= z) = p, 0 < p < 1."""
    return _NORMAL.inv_cdf(p)


def poisson_at_most(count: float, mean: float) -> float:
    """P(N <= count) for mean >= 0. `count` >= 0 need not be whole: then it is the regularized gamma function
    Q(count + 1, mean)."""
    return gamma_tail(count + 1, mean)


def binomial_at_most(count: float, trials: float, chance: float) -> float:
    """P(N <= count). None of `count` <= `trials` need be whole."""
    if count >= trials or chance <= 0:
        return 1.0
    return beta_at_most(trials - count, count + 1, 1 - chance) if chance < 1 else 0.0


def gamma_tail(shape: float, x: float) -> float:
    """P(X >= x) for a gamma distribution of scale 1; shape > 0. The regularized Q(shape, x)."""
    if x <= 0:
        return 1.0
    if x < shape + 1:
        return max(1 - _lower_series(shape, x), 0.0)
    b = x + 1 - shape
    return _front(shape, x) * _fraction(1.0, b, lambda n: (n * (shape - n), b + 2 * n))


def gamma_at_most(shape: float, x: float) -> float:
    """P(X <= x), the regularized P(shape, x); exact also where it is small."""
    if x <= 0:
        return 0.0
    if x >= shape + 1:
        return 1 - gamma_tail(shape, x)
    return _lower_series(shape, x)


def _lower_series(shape: float, x: float) -> float:
    """The regularized P(shape, x) by its series, 6.5.29; for x < shape + 1."""
    term = total = 1 / shape
    for n in range(1, _MOST_TERMS):
        term *= x / (shape + n)
        total += term
        if term < total * _EPSILON:
            break
    return _front(shape, x) * total


def _front(shape: float, x: float) -> float:
    """x^shape e^-x / Gamma(shape)."""
    return math.exp(shape * math.log(x) - x - math.lgamma(shape))


def gamma_quantile(shape: float, p: float) -> float:
    """The x with P(X <= x) = p, 0 < p < 1."""
    high = shape + 1
    while gamma_tail(shape, high) > 1 - p:
        high *= 2
    return _root(lambda x: p - gamma_at_most(shape, x), 0.0, high)


def beta_at_most(a: float, b: float, x: float) -> float:
    """P(X <= x) for a beta distribution; a, b > 0, x in 0..1. The regularized I_x(a, b)."""
    if x <= 0 or x >= 1:
        return float(x > 0)
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x))
    if x > (a + 1) / (a + b + 2):
        return max(1 - front * _beta_fraction(b, a, 1 - x) / b, 0.0)
    return front * _beta_fraction(a, b, x) / a


def beta_quantile(a: float, b: float, p: float) -> float:
    """The x with P(X <= x) = p, 0 < p < 1."""
    return _root(lambda x: p - beta_at_most(a, b, x), 0.0, 1.0)


def _beta_fraction(a: float, b: float, x: float) -> float:
    def term(n: int) -> tuple[float, float]:
        m = n // 2
        if n % 2:
            return -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)), 1.0
        return m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)), 1.0

    return _fraction(1.0, 1.0, term)


def _fraction(a: float, b: float, term: Callable[[int], tuple[float, float]]) -> float:
    """a / (b + a1 / (b1 + a2 / (b2 + ...))) with (a_n, b_n) = term(n)."""
    d = 1 / (b or _TINY)
    c = 1 / _TINY
    value = a * d
    for n in range(1, _MOST_TERMS):
        an, bn = term(n)
        d = bn + an * d
        d = 1 / (d if abs(d) > _TINY else _TINY)
        c = bn + an / c
        c = c if abs(c) > _TINY else _TINY
        value *= c * d
        if abs(c * d - 1) < 3 * _EPSILON:
            break
    return value


def _root(falling: Callable[[float], float], low: float, high: float) -> float:
    """Where a function that falls from `low` to `high` is zero, to 11 digits: false position by the Illinois rule,
    which halves the value at an end that stays (Dowell & Jarratt, BIT 11 (1971), 168-174)."""
    at_low, at_high = falling(low), falling(high)
    side = 0
    for _ in range(200):
        middle = (low * at_high - high * at_low) / (at_high - at_low)
        if not low < middle < high:
            middle = (low + high) / 2
        value = falling(middle)
        if value == 0 or high - low <= 1e-11 * abs(high):
            return middle
        if value > 0:
            low, at_low = middle, value
            at_high, side = (at_high / 2 if side > 0 else at_high), 1
        else:
            high, at_high = middle, value
            at_low, side = (at_low / 2 if side < 0 else at_low), -1
        if abs(value) < 1e-14:
            return middle
    return (low + high) / 2
