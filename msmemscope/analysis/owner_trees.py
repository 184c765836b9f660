"""A tree of owners: the bytes of every owner of a pool at one moment, and what its branches add up to.

In: owners as the folds number them (native/kernel/tables.h, MEMSCOPE_OWNER_COLUMNS), and bytes by number. Out: paths
from the pool down, and the bytes of every node with those below it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from msmemscope._kernel import FOLD_LABELS
from msmemscope.analysis.analyzer import Tables
from msmemscope.analysis.findings import device_name, pool_name
from msmemscope.analysis.owner_paths import Path, below_first
from msmemscope.analysis.owners import OTHER, UNATTRIBUTED, label_texts, owner_levels

Place = tuple[str, str]
"""Device and pool."""
Tree = dict[Path, int]
"""Bytes of every owner itself, without those below it. The first level of each is its pool."""


def place_of(device_type: int, device: int, pool: int) -> Place:
    """As reports name them."""
    return device_name(device_type, device), pool_name(pool, device_type)


def of_job(place: Place) -> Place:
    """Each rank has a device of its own: over the job they are one."""
    return place[0].partition(":")[0], place[1]


def paths_of(owners: dict[str, Any], tables: Tables) -> dict[int, Path]:
    """By number the levels of an owner below its pool's name; what only its pool tells is unattributed."""
    found: dict[int, Path] = {0: (OTHER,)}
    for owner, (root, labels) in owner_levels(owners).items():
        texts = tuple(label_texts(labels, tables.text))
        module = (below_first(root),) if below_first(root) else ()
        named = any(label and FOLD_LABELS.get(label) != "ops" for label in labels)
        found[owner] = module if module and not texts else (*module, *((*texts,) if named else (UNATTRIBUTED,)))
    return found


def tree_of(paths: Mapping[int, Path], root: str, owners: Any, sizes: Any) -> Tree:
    tree: Tree = defaultdict(int)
    for owner, size in zip(owners.tolist(), sizes.tolist(), strict=True):
        if size:
            path = (root, *paths.get(owner, (OTHER,)))
            tree[path] += size
    return dict(tree)


def added(trees: Iterable[Tree]) -> Tree:
    """Their sum."""
    total: Tree = defaultdict(int)
    for tree in trees:
        for path, size in tree.items():
            total[path] += size
    return dict(total)


def nodes_of(tree: Tree) -> dict[Path, tuple[int, int]]:
    """Of every node its own bytes, and those with what is below it; parents before children."""
    whole: dict[Path, int] = defaultdict(int)
    for path, size in tree.items():
        for depth in range(1, len(path) + 1):
            whole[path[:depth]] += size
    return {path: (tree.get(path, 0), whole[path]) for path in sorted(whole)}
