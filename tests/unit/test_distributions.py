"""Tails and quantiles against scipy."""

from __future__ import annotations

from itertools import product

import pytest
from scipy import special

from msmemscope.analysis.verdict import distributions as ours

SHAPES = (0.3, 1, 1.5, 2, 7.25, 30, 99, 100.5, 1000, 10_000)
CHANCES = (1e-6, 0.01, 0.025, 0.3, 0.5, 0.9, 0.975, 0.999)


def close(value: float, expected: float, error: float = 1e-10) -> bool:
    return value == pytest.approx(expected, rel=error, abs=1e-290)


@pytest.mark.parametrize("shape", SHAPES)
def test_gamma(shape: float):
    for factor in (0.01, 0.5, 0.9, 0.999, 1, 1.001, 1.1, 1.5, 3, 20):
        x = shape * factor
        # Beyond the mean the lower function is 1 minus something, and the other way round.
        assert close(ours.gamma_tail(shape, x), special.gammaincc(shape, x), 1e-10 if x > shape else 1e-9)
        assert close(ours.gamma_at_most(shape, x), special.gammainc(shape, x), 1e-10 if x < shape else 1e-9)
    for p in CHANCES:
        assert close(ours.gamma_quantile(shape, p), special.gammaincinv(shape, p), 1e-9)


@pytest.mark.parametrize(("a", "b"), list(product(SHAPES, SHAPES)))
def test_beta(a: float, b: float):
    mean = a / (a + b)
    for x in (mean * 0.1, mean * 0.9, mean, mean + (1 - mean) * 0.1, mean + (1 - mean) * 0.9):
        expected = special.betainc(a, b, x)
        if expected > 1e-280:
            assert close(ours.beta_at_most(a, b, x), expected, 1e-9)
    if min(a, b) >= 1:
        for p in CHANCES:
            assert close(ours.beta_quantile(a, b, p), special.betaincinv(a, b, p), 1e-8)


def test_large_shapes():
    for shape in (1e5, 1e6):
        for x in (shape * 0.998, shape, shape * 1.002):
            assert close(ours.gamma_tail(shape, x), special.gammaincc(shape, x), 1e-7)
            assert close(ours.beta_at_most(shape, 3 * shape, 0.2499), special.betainc(shape, 3 * shape, 0.2499), 1e-7)


def test_counts():
    assert close(ours.poisson_at_most(0, 2.5), special.pdtr(0, 2.5))
    assert close(ours.poisson_at_most(7, 12), special.pdtr(7, 12))
    assert close(ours.binomial_at_most(3, 20, 0.4), special.bdtr(3, 20, 0.4))
    assert close(ours.binomial_at_most(2.5, 7.75, 0.4), special.betainc(5.25, 3.5, 0.6))
    assert ours.poisson_at_most(3, 0) == 1
    assert ours.binomial_at_most(5, 5, 0.9) == ours.binomial_at_most(2, 5, 0) == 1
    assert ours.binomial_at_most(2, 5, 1) == 0


def test_normal():
    for z in (-9, -1.2, 0, 0.5, 3, 12):
        assert close(ours.normal_tail(z), special.ndtr(-z))
    for p in (1e-9, 0.005, 0.5, 0.975):
        assert close(ours.normal_quantile(p), special.ndtri(p), 1e-9)
