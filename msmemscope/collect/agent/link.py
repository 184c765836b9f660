"""The agent's way to its shard: messages one way, answers the other, over a ZeroMQ socket.

In: packed messages. Out: the answers, as bytes; and which of some files can be read, so that the agent sleeps in one
place. Knows nothing of what is said.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Protocol

import zmq


class Link(Protocol):
    """What an agent needs of the way to a shard, which may live in the same process (aggregate/drain.py)."""

    def connect(self) -> None:
        """Begins anew, without what was under way."""

    def send(self, data: bytes) -> None: ...

    def has_answers(self) -> bool:
        """Some that were not taken yet."""

    def wait(self, files: Collection[int], ms: int) -> Collection[int]:
        """Until there is an answer, one of the files can be read, or the time is over. Returns those files."""

    def answers(self) -> Iterator[bytes]:
        """Those that are here."""

    def close(self) -> None:
        """What had to arrive was answered: the rest is dropped."""


class SocketLink:
    """endpoint: the shard's, as ZeroMQ writes it."""

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint
        self._context = zmq.Context()
        self._socket: zmq.Socket[bytes] | None = None

    def connect(self) -> None:
        if self._socket is not None:
            self._socket.close(linger=0)
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.SNDHWM, 0)  # the agent's window bounds what is queued
        self._socket.setsockopt(zmq.RCVHWM, 0)  # one answer to each message
        self._socket.setsockopt(zmq.RECONNECT_IVL, 20)
        self._socket.setsockopt(zmq.RECONNECT_IVL_MAX, 200)
        self._socket.connect(self._endpoint)

    def send(self, data: bytes) -> None:
        assert self._socket is not None
        self._socket.send(data, copy=False)

    def has_answers(self) -> bool:
        assert self._socket is not None
        return self._socket.poll(0) != 0

    def wait(self, files: Collection[int], ms: int) -> Collection[int]:
        poller = zmq.Poller()
        for place in (self._socket, *files):
            poller.register(place, zmq.POLLIN)
        return {place for place, _ in poller.poll(ms) if isinstance(place, int)}

    def answers(self) -> Iterator[bytes]:
        assert self._socket is not None
        while True:
            try:
                yield self._socket.recv(zmq.NOBLOCK)
            except zmq.Again:
                return

    def close(self) -> None:
        self._context.destroy(linger=0)
