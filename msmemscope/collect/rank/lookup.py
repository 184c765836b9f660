"""When this process looks up who holds its leaked tensors, and how it tells.

In: `leaking-<ring>` in the session directory, which the aggregator writes when it has judged this process: the call
stack of a leak, as 16 hexadecimal digits -> addresses of some of its blocks; {} where nothing leaks. Out: META records
"holder", each a JSON text: `text` ("list `feats` (40 items), a global of train.py"), `found` and `of` (so many of the
tensors that were looked at are held so), `passes` (of an autograd graph), `items` and `bound` (of a container: what it
holds and may hold at most; 0 where nothing bounds it), `step` (when it was looked), and either `stack` or `at`,
addresses of blocks.

At the exit of the interpreter nobody needs it any more: threads that are no daemons have ended, and what the program
registered has run. Where the process ends young, so that it was not judged yet, or by its first steps alone, tensors
are looked at in groups of one size, and the analysis knows by their addresses which of them leaked. A process that is
killed, or leaves by os._exit(), tells nothing. `--holders step` looks at the end of a step, too: of the first from
which a leak can be told, which may be the last, and whenever the file is new.
"""

from __future__ import annotations

import os
import time

from msmemscope import _native
from msmemscope.collect.session import LEAKING
from msmemscope.telling import tell

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from msmemscope.collect.rank.holders import Holder

HOLDER = "holder"
YOUNG_S = 20.0  # after which a process with steps has been judged, and by most of them
FEWEST_STEPS = 12  # of which a leak can be told
LOOK_S = 0.3  # of processor time, beyond listing the objects
_EVERY_S = 1.0  # between two looks for the file
_LONGEST_TEXT = 400
_ADDRESSES = 12  # told of a holder
_LARGEST_FILE = 1 << 20


class Lookup:
    """Of one process, from when it was attached on."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._pid = os.getpid()
        self._began = time.monotonic()
        self._next = 0.0
        self._has_looked_early = False
        self._looked: set[str] = set()  # call stacks of leaks

    def at_exit(self) -> None:
        """Called when the interpreter ends. Raises nothing."""
        try:
            if _native.stats()["recording"]:
                leaking = self._news()
                if leaking or (not self._looked and self._is_young()):
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
            leaking = self._news()
            if leaking or (is_first and leaking is None):
                self._look(leaking)
            self._has_looked_early |= is_first
        except Exception as error:  # noqa: BLE001 - whatever it is, the program's step has ended
            self._next = float("inf")
            tell(f"Warning: who holds leaked tensors is not looked up any more: {error!r}")

    def _is_young(self) -> bool:
        lived = time.monotonic() - self._began
        return lived < YOUNG_S and os.getpid() == self._pid and _native.current_step() > FEWEST_STEPS

    def _news(self) -> dict[str, list[int]] | None:
        """Of leaks that were not looked at yet, the addresses. None: the process was not judged."""
        path = os.path.join(self._directory, f"{LEAKING}{_native.stats()['ring_id']:016x}")
        try:
            with open(path, "rb") as file:
                text = file.read(_LARGEST_FILE)
        except OSError:
            return None
        import json

        return {stack: addresses for stack, addresses in json.loads(text).items() if stack not in self._looked}

    def _look(self, leaking: Mapping[str, Sequence[int]] | None) -> None:
        from msmemscope.collect.rank.bootstrap import own_imports

        with own_imports:
            from msmemscope.collect.rank.holders import find_holders

        self._looked.update(leaking or ())
        for holder in find_holders(leaking, LOOK_S):
            _native.meta(HOLDER, _as_text(holder))


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
