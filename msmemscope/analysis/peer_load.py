"""Whether a rank holds more than its peers because it works on more: experts that get more tokens, longer sequences.

In: an excess with its lines (peer_excess.py says which are fed more), and what only these ranks have in common. Out: a
sentence and a piece of advice. How many tokens an expert gets is not recorded: it is told by the sizes of the blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from msmemscope.analysis.coordinates import EXPERT
from msmemscope.analysis.findings import at_the_start, place_of_frame, ranks_text

if TYPE_CHECKING:
    from msmemscope.analysis.peer_excess import Excess, Line

TOKENS, DATA = "tokens", "data"


def load_of(first: Excess, coordinates: Sequence[str]) -> dict[str, Any] | None:
    """How many times its peers' its lines that are fed more hold, and of what it gets more; None where that does not
    explain half of the excess. coordinates: those that all ranks of the finding have, and none of their peers."""
    fed = _fed(first)
    more, usual = sum(line.bytes for line in fed), sum(line.usual for line in fed)
    if not fed or 2 * more < first.bytes:
        return None
    expert = next((one for one in coordinates if one.startswith(f"{EXPERT}=")), "")
    what = TOKENS if expert else DATA
    return {"ratio": round((usual + more) / usual, 2), "gets_more": what, "expert": expert.partition("=")[2]}


def load_sentence(load: dict[str, Any], first: Excess, ranks: Sequence[int]) -> str:
    """ "Expert parallel rank 5 holds 2.1x of its peers' memory at moe.py:44, in as many blocks, because it gets more
    tokens." """
    several = len(ranks) > 1
    who = ranks_text(ranks)
    if load["expert"]:
        of = f" ({who})" if list(ranks) != [int(load["expert"])] else ""
        who, several = f"expert parallel rank {load['expert']}{of}", False
    at = " and ".join(place_of_frame(line.frame) for line in _fed(first)[:2])
    why = f"{'they get' if several else 'it gets'} more {load['gets_more']}"
    text = f"{who} {'hold' if several else 'holds'} {load['ratio']:.1f}x of {'their' if several else 'its'} peers' "
    text += f"memory at {at}, in as many blocks, because {why}."
    return at_the_start(text) if not load["expert"] else text[0].upper() + text[1:]


def load_advice(load: dict[str, Any]) -> str:
    """What may be done."""
    if load["gets_more"] == TOKENS:
        return (
            "Balance the experts: a larger auxiliary loss, or a bias for experts that get few; bound what one gets by "
            "a capacity factor, or put experts that are hot on different ranks."
        )
    return "Share the data out by tokens rather than by sequences: pack them, or sort them by length over the ranks."


def _fed(first: Excess) -> list[Line]:
    return [line for line in first.lines if line.is_fed_more]
