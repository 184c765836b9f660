"""What looks at the program's objects, in calls of its own, until the first fault: that must not reach the program."""

from __future__ import annotations

from msmemscope.telling import tell

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


class UntilFirstFault:
    """Runs looks of one kind. Behind the first that raises none is run any more, and `loss` is told once."""

    def __init__(self, loss: str) -> None:
        self._loss = loss
        self.has_failed = False

    def run(self, look: Callable[[], None]) -> None:
        """Raises nothing."""
        if self.has_failed:
            return
        try:
            look()
        except Exception as error:  # noqa: BLE001 - whatever it is, the program goes on
            self.has_failed = True
            tell(f"Warning: {self._loss}: {error!r}")
