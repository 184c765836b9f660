"""A shard in a process of its own: takes what the agents of its node send, and tells a coordinator what it knows.

python shard_process.py SESSION_DIR RUN NAME COORDINATOR
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import zmq

from msmemscope.aggregate.evidence import OwnEvidence, evidence_messages
from msmemscope.aggregate.folding import Folding
from msmemscope.aggregate.shard import Shard

TELLS_S = 0.1


def main(session_dir: Path, run: Path, name: str, coordinator: str, most_rows: int) -> None:
    session = json.loads((session_dir / "session.json").read_text())
    run.mkdir(exist_ok=True)
    folding = Folding(run)
    own = OwnEvidence(Shard(run, session["session"], 10_000, 1, folding, name), folding)
    context = zmq.Context()
    agents, told = context.socket(zmq.ROUTER), context.socket(zmq.PUSH)
    agents.bind(session["endpoint"])
    told.connect(coordinator)

    def tell() -> None:
        for data in evidence_messages(own, session["session"]):
            told.send(data)

    next_time = 0.0
    while not own.shard.all_agents_left:
        if agents.poll(20):
            agent, data = agents.recv_multipart()
            answers = own.shard.answer(data)
            if sum(ring.stored.rows for ring in own.shard.rings.values()) >= most_rows:
                own.finish()
                tell()
                context.destroy(linger=-1)
                os._exit(1)
            for answer in answers:
                agents.send_multipart([agent, answer])
        own.shard.roll()
        if time.monotonic() >= next_time:
            next_time = time.monotonic() + TELLS_S
            tell()
    assert own.shard.close(180)
    own.finish()
    tell()
    context.destroy(linger=-1)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], sys.argv[4], int(sys.argv[5]))
