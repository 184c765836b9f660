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
    """expected: of the job; None: not known. source: who says so. spans: may there be several? seen: in this run.
    node: which this is, from 0 on; None: not known. rendezvous: where they meet, the same text in the runs of all."""

    expected: int | None
    source: str
    spans: bool
    seen: int
    node: int | None = None
    rendezvous: str = ""

    def as_json(self) -> dict[str, Any]:
        return {
            "expected": self.expected,
            "source": self.source,
            "seen": self.seen,
            "node": self.node,
            "rendezvous": self.rendezvous,
        }

    @property
    def place(self) -> str:
        """ ", node 1 of those that meet at 10.0.0.7:29500": by which the runs of the others are found."""
        node = "" if self.node is None else f", node {self.node}"
        return f"{node} of those that meet at {self.rendezvous}" if node and self.rendezvous else node


def node_facts(info: Mapping[str, Any], *, seen: int) -> NodeFacts:
    """What run.json says; older versions say nothing."""
    facts = info.get("nodes")
    if not isinstance(facts, Mapping):
        return NodeFacts(None, "this run does not say", False, seen)
    expected = facts.get("expected")
    known = type(expected) is int and expected > 0
    node, meet = facts.get("node"), facts.get("rendezvous", "")
    return NodeFacts(
        expected if known else None,
        str(facts.get("source", "")),
        facts.get("spans") is True,
        seen,
        node if type(node) is int and node >= 0 else None,
        meet if isinstance(meet, str) else "",
    )


def nodes_missing(nodes: NodeFacts, *, all_ranks_reported: bool) -> str:
    """ "" when the run is all of the job, as far as anybody can tell."""
    if nodes.expected is not None:
        if nodes.expected <= nodes.seen:
            return ""
        here = f"{nodes.seen} of {nodes.expected} nodes are in this run ({nodes.source}{nodes.place})"
        return f"{here}; no number here has the others"
    if not nodes.spans or all_ranks_reported:
        return ""
    return f"how many nodes the job has is not known ({nodes.source}); this run has {nodes.seen}"
