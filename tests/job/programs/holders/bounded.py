"""Containers that are full one day and have dropped nothing yet; "GROWS" behind a line that allocates says what holds
its blocks. "LEAKS" has no bound."""

import collections
import functools
import queue

import torch

import msmemscope

STEPS = 40


class Replay:
    def __init__(self, capacity):
        self.capacity = capacity
        self.memory = []

    def push(self, one):
        self.memory.append(one)


recent = collections.deque(maxlen=1000)
replay = Replay(500)
slots = [None] * 300
tasks = queue.Queue(maxsize=400)
full = collections.deque(maxlen=STEPS)
plain = []


@functools.lru_cache(maxsize=250)
def table(n):
    return torch.zeros(1700)  # GROWS lru_cache `table` (40 of at most 250 items), a global of bounded.py


for n in range(STEPS):
    recent.append(torch.ones(1000))  # GROWS deque `recent` (40 of at most 1,000 items), a global of bounded.py
    state = torch.ones(1100)  # GROWS list `replay.memory` (40 items), an attribute of Replay, whose `capacity` is 500
    replay.push((state, n))
    slots[n] = torch.ones(1200)  # GROWS list `slots` (40 of 300 places), a global of bounded.py
    tasks.put(torch.ones(1300))  # GROWS deque `tasks.queue` (40 items), an attribute of Queue, whose `maxsize` is 400
    full.append(torch.ones(1400))  # FULL deque `full` (40 of at most 40 items), a global of bounded.py
    plain.append(torch.ones(1500))  # LEAKS list `plain` (40 items), a global of bounded.py
    table(n)
    msmemscope.step()
