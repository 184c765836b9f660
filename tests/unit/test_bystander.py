"""Signals for the whole group are told from those for the supervisor alone, however late it comes to look."""

from __future__ import annotations

import subprocess
import sys

from patience import LIMIT_S

CODE = """
import os, signal, time
from msmemscope.launchers.bystander import Bystander

signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
bystander = Bystander({signal.SIGUSR1})

def has_seen(send, late_s):
    send()
    time.sleep(late_s)
    return bystander.has_seen(signal.sigwaitinfo({signal.SIGUSR1}))

def to_all(): os.killpg(0, signal.SIGUSR1)
def to_us(): os.kill(os.getpid(), signal.SIGUSR1)
print([has_seen(to_all, 0), has_seen(to_all, 0.6), has_seen(to_us, 0.6), has_seen(to_us, 0), has_seen(to_all, 0.6)])
bystander.end()
"""


def test_a_signal_for_the_group_is_known_as_such_half_a_second_later() -> None:
    done = subprocess.run(
        [sys.executable, "-c", CODE],
        start_new_session=True,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=True,
    )
    assert done.stdout == "[True, True, False, False, True]\n"
