"""The agent's words to the user: a line on the terminal of the job."""

from __future__ import annotations

from msmemscope.telling import tell

_MOST_TOLD = 20  # different words about refused messages


def say(text: str) -> None:
    tell(f"agent: {text}")


class Once:
    """Says each text once, and few in all: what is refused is counted, and may be refused a thousand times."""

    def __init__(self) -> None:
        self._told: set[str] = set()

    def say(self, text: str) -> None:
        if text not in self._told and len(self._told) < _MOST_TOLD:
            self._told.add(text)
            say(text)
