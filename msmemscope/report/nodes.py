"""Which part of the job a run is, in nodes: run.json's "nodes", from msmemscope/collect/nodes.py.

In: run.json and what was seen. Out: `NodeFacts`, and a sentence when nodes of the job are not in the run, or when
nobody knows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class NodeFacts:
    """expected: of the job; None: not known. source: who says so. spans: may there be several? seen: in this run."""

    expected: int | None
    source: str
    spans: bool
    seen: int

    def as_json(self) -> dict[str, Any]:
        return {"expected": self.expected, "source": self.source, "seen": self.seen}


def node_facts(info: Mapping[str, Any], *, seen: int) -> NodeFacts:
    """What run.json says; older versions say nothing."""
    facts = info.get("nodes")
    if not isinstance(facts, Mapping):
        return NodeFacts(None, "this run does not say", False, seen)
    expected = facts.get("expected")
    known = isinstance(expected, int) and not isinstance(expected, bool) and expected > 0
    return NodeFacts(expected if known else None, str(facts.get("source", "")), facts.get("spans") is True, seen)


def nodes_missing(nodes: NodeFacts, *, all_ranks_reported: bool) -> str:
    """ "" when the run is all of the job, as far as anybody can tell."""
    if nodes.expected is not None:
        if nodes.expected <= nodes.seen:
            return ""
        return f"{nodes.seen} of {nodes.expected} nodes are in this run ({nodes.source}); no number here has the others"
    if not nodes.spans or all_ranks_reported:
        return ""
    return f"how many nodes the job has is not known ({nodes.source}); this run has {nodes.seen}"
