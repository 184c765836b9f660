"""Snapshots of devices that another process of the node drives: who wants them asks, who drives them takes them.

In: requests, a line each in the file `snapshots-asked` of the session directory. Out: answers, a line each in
`snapshots-answered`; the snapshots themselves stand in the ring of whoever took them. Both are only ever appended to,
by lines that are short enough to be whole. A process looks for requests at its steps: nobody waits, and there is no
thread. It looks at its own requests then, too, and when it ends, and says which devices nobody has answered for.
"""

from __future__ import annotations

import json
import os
import time

from msmemscope.telling import warn_once

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    Take = Callable[[str, int], bool]  # a name and a driver's number -> whether this process took it

ASKED, ANSWERED = "snapshots-asked", "snapshots-answered"
LIMIT_S = 30.0  # after which nobody answers any more
LOOK_EVERY_S = 0.2
MOST_BYTES = 1 << 20  # of either file
_LONGEST_NAME = 400


class Requests:
    """Those of one session, as one process sees them. take: takes a snapshot of a device that it drives."""

    def __init__(self, directory: str, take: Take) -> None:
        self._asked = os.path.join(directory, ASKED)
        self._answered = os.path.join(directory, ANSWERED)
        self._take = take
        self._read = {self._asked: 0, self._answered: 0}  # bytes of either
        self._pid = os.getpid()
        self._next = 0.0
        self._own: dict[str, tuple[float, set[int]]] = {}  # request -> when it lapses, devices without an answer
        self._count = 0

    def ask(self, devices: Iterable[int], name: str) -> None:
        """Asks the other processes. devices: the driver's numbers. OSError where the session directory is gone."""
        self._begin_anew_in_child()
        self._count += 1
        request = f"{self._pid}-{self._count}"
        until = time.monotonic() + LIMIT_S
        wanted = sorted(set(devices))
        line = {"request": request, "devices": wanted, "name": name[:_LONGEST_NAME], "until": until}
        _append(self._asked, line)
        self._own[request] = (until, set(wanted))

    def look(self, *, at_end: bool = False) -> None:
        """Takes what others ask for, and says what is asked for in vain. Raises nothing that is the system's fault."""
        now = time.monotonic()
        if now < self._next and not at_end:
            return
        self._next = now + LOOK_EVERY_S
        self._begin_anew_in_child()
        try:
            for line in self._news(self._asked):
                self._answer(line, now)
            if self._own:
                for line in self._news(self._answered):
                    _, missing = self._own.get(str(line.get("request")), (0.0, set[int]()))
                    missing.discard(int(str(line.get("device"))))
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            return  # another look may do
        for request, (until, missing) in list(self._own.items()):
            if missing and not (at_end or now > until):
                continue
            del self._own[request]
            if missing:
                numbers = ", ".join(map(str, sorted(missing)))
                waited = "before this process ended" if at_end else f"within {LIMIT_S:g} s"
                warn_once(f"no snapshot of device {numbers}: no process that uses it came to a step {waited}")

    def _begin_anew_in_child(self) -> None:
        """What its parent asks for is its parent's."""
        if self._pid != os.getpid():
            self._pid = os.getpid()
            self._own.clear()

    def _answer(self, line: dict[str, object], now: float) -> None:
        request, devices, until = str(line["request"]), line["devices"], line["until"]
        if (
            request.startswith(f"{self._pid}-")
            or not isinstance(devices, list)
            or not isinstance(until, float)
            or now > until
        ):
            return
        for device in devices:
            if self._take(str(line["name"]), int(device)):
                _append(self._answered, {"request": request, "device": int(device)})

    def _news(self, path: str) -> list[dict[str, object]]:
        """Whole lines that were appended since the last call. One system call where there are none."""
        try:
            if os.stat(path).st_size <= self._read[path]:
                return []
        except FileNotFoundError:
            return []
        with open(path, "rb") as file:
            file.seek(self._read[path])
            text = file.read(MOST_BYTES)
        whole = text[: text.rfind(b"\n") + 1]
        self._read[path] += len(whole)
        return [json.loads(line) for line in whole.splitlines()]


def _append(path: str, line: dict[str, object]) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        if os.fstat(file).st_size < MOST_BYTES:
            os.write(file, json.dumps(line).encode() + b"\n")
    finally:
        os.close(file)


def driver_number(device: int, variable: str) -> int:
    """The driver's number of a device that this process calls `device`. variable: such as ASCEND_RT_VISIBLE_DEVICES,
    the list of those that it sees. A device beyond that list is another process's, called as the driver does."""
    listed = [text.strip() for text in os.environ.get(variable, "").split(",") if text.strip()]
    if device < len(listed) and all(text.isdigit() for text in listed):
        return int(listed[device])
    return device
