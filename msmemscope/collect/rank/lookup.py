"""When this process looks up who holds its leaked tensors, and how it tells.

In: `leaking-<ring>` in the session directory, which the aggregator writes when it has judged this process: `judged`, up
to which step, rounded down, and `blocks`: the call stack of what leaks or grows, as 16 hexadecimal digits -> addresses
of some of its blocks; {} where nothing does. Out: META records "holder", each a JSON text: `text` ("list `feats` (40
items), a global of train.py"), `found` and `of` (so many of the tensors that were looked at are held so), `passes` (of
an autograd graph), `items` and `bound` (of a container: what it holds and may hold at most; 0 where nothing bounds it),
`step` (when it was looked), and either `stack` or `at`, addresses of blocks. Of a container whose entries keep graphs
of autograd, its `text` and `step` again with `graphs`: of two entries, the addresses of what the graph of each alone
keeps (in hexadecimal digits, each but the first as the distance from the one before).

At the exit of the interpreter nobody needs it any more: threads that are no daemons have ended, and what the program
registered has run. Where it was not judged yet, or by its first steps alone, tensors are looked at in groups of one
size or container, and the analysis knows by their addresses which of them leaked. A process that is killed, or leaves
by os._exit(), tells nothing. `--holders step` looks at the end of a step, too: of the first from which a leak can be
told, which may be the last, and whenever the file is new.
"""

from __future__ import annotations

import os
import time

from msmemscope import _native
from msmemscope.collect.session import LEAKING
from msmemscope.telling import tell

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from msmemscope.collect.rank.graphs import Room
    from msmemscope.collect.rank.holders import Holder

HOLDER = "holder"
MOST_OF_ITS_STEPS = 2 / 3  # a verdict on fewer of them knows little of what the others made
FEWEST_STEPS = 12  # of which a leak can be told
LOOK_S = 0.3  # of processor time, beyond listing the objects
_EVERY_S = 1.0  # between two looks for the file
_LONGEST_TEXT = 300  # characters: in JSON at most 12 bytes each, and a text of the ring has room for 4 KiB
_ADDRESSES = 12  # told of a holder
_LONGEST_RECORD = 4000  # of the same 4 KiB
_RECORDS = 2  # on the graphs of a container's entries: enough for a small model
_RECORDS_OF_BOUNDED = 32  # nothing that the graphs keep may be left out
_MOST_GRAPHS = 64
_LARGEST_FILE = 1 << 20


class Lookup:
    """Of one process, from when it was attached on."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._pid = os.getpid()
        self._next = 0.0
        self._has_looked_early = False
        self._looked: set[str] = set()  # call stacks of leaks
        self._room: Room | None = None  # of all look-ups

    def at_exit(self) -> None:
        """Called when the interpreter ends. Raises nothing."""
        try:
            if _native.stats()["recording"]:
                judged, leaking = self._news()
                if leaking or (not self._looked and self._is_mostly_unjudged(judged)):
                    self._look(leaking or None)
        except KeyboardInterrupt:  # nobody is left to whom it means more than: go on with ending
            return
        except Exception as error:  # noqa: BLE001 - whatever it is, the program ends as it would
            tell(f"Warning: who holds leaked tensors is not known: {error!r}")

    def after_step(self) -> None:
        """Called when a step has ended, by the thread that ended it."""
        now = time.monotonic()
        is_first = not self._has_looked_early and _native.current_step() > FEWEST_STEPS
        if now < self._next and not is_first:
            return
        self._next = now + _EVERY_S
        try:
            judged, leaking = self._news()
            if leaking or (is_first and judged is None):
                self._look(leaking or None)
            self._has_looked_early |= is_first
        except Exception as error:  # noqa: BLE001 - whatever it is, the program's step has ended
            self._next = float("inf")
            tell(f"Warning: who holds leaked tensors is not looked up any more: {error!r}")

    def _is_mostly_unjudged(self, judged: int | None) -> bool:
        """Whether the process made steps enough to be judged, and most of them are not."""
        step = _native.current_step()
        return os.getpid() == self._pid and step > FEWEST_STEPS and (judged or 0) < MOST_OF_ITS_STEPS * step

    def _news(self) -> tuple[int | None, dict[str, list[int]]]:
        """Up to which step this process was judged, None where it was not, and addresses of leaks that were not looked
        at yet."""
        path = os.path.join(self._directory, f"{LEAKING}{_native.stats()['ring_id']:016x}")
        try:
            with open(path, "rb") as file:
                text = file.read(_LARGEST_FILE)
        except OSError:
            return None, {}
        import json

        said = json.loads(text)
        return said["judged"], {name: one for name, one in said["blocks"].items() if name not in self._looked}

    def _look(self, leaking: Mapping[str, Sequence[int]] | None) -> None:
        from msmemscope.collect.rank.bootstrap import own_imports

        with own_imports:
            from msmemscope.collect.rank.graphs import Room
            from msmemscope.collect.rank.holders import find_holders

        self._looked.update(leaking or ())
        if self._room is None:
            self._room = Room()
        holders = find_holders(leaking, LOOK_S, self._room)
        for holder in holders:
            _native.meta(HOLDER, _as_text(holder))
        told = 0
        for holder in holders:
            for text in _graphs_of(holder):
                if told < _MOST_GRAPHS:
                    _native.meta(HOLDER, text)
                    told += 1


def _as_text(holder: Holder) -> str:
    import json

    place: dict[str, object] = {"stack": holder.name} if holder.name else {"at": list(holder.addresses[:_ADDRESSES])}
    return json.dumps(
        {
            "text": holder.text[:_LONGEST_TEXT],
            "found": holder.found,
            "of": holder.of,
            "passes": holder.passes,
            "items": holder.items,
            "bound": holder.bound,
            "step": _native.current_step(),
            **place,
        }
    )


def _graphs_of(holder: Holder) -> Iterator[str]:
    """What the graphs of its entries keep: of each entry's addresses so many as a record has room for."""
    import json

    head = {"text": holder.text[:_LONGEST_TEXT], "step": _native.current_step()}
    room = _LONGEST_RECORD - len(json.dumps(head))
    left = [sorted(one) for one in holder.kept]
    for _ in range(_RECORDS_OF_BOUNDED if holder.bound else _RECORDS):
        if not any(left):
            return
        taken = [_packed(addresses, room // len(left)) for addresses in left]
        yield json.dumps({**head, "graphs": [text for _, text in taken]})
        left = [addresses[count:] for addresses, (count, _) in zip(left, taken)]  # noqa: B905


def _packed(addresses: Sequence[int], room: int) -> tuple[int, str]:
    """How many of them have room, each in hexadecimal digits as the distance from the one before; and that."""
    before, text = 0, ""
    for number, address in enumerate(addresses):
        longer = f"{text},{address - before:x}" if text else f"{address:x}"
        if len(longer) > room:
            return number, text
        before, text = address, longer
    return len(addresses), text
