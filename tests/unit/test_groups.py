"""Tests that share one long run are marked with one `xdist_group`, and stay in one process.

Where the mark means nothing every other test passes as well, and each worker makes the long run for itself.
"""

from __future__ import annotations

import pytest


@pytest.mark.xdist_group("groups are kept")
def test_a_group_is_known_to_the_scheduler(request: pytest.FixtureRequest) -> None:
    if not request.config.getoption("loadgroup", default=False):
        pytest.skip("no worker of --dist loadgroup: one process runs them all")
    # By the id alone pytest-xdist tells its scheduler the group.
    assert request.node.nodeid.endswith("@groups are kept"), f"pytest {pytest.__version__} hides the group"
