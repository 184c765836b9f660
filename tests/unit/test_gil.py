"""A thread that is in native code when the interpreter ends, and comes back for its lock."""

from __future__ import annotations

import subprocess
import sys

from patience import LIMIT_S

PROGRAM = """
import threading, time
from msmemscope import _native

class Late:
    def __del__(self, sleep=time.sleep):
        sleep(0.2)  # others may have the interpreter now, which has begun to end

entered = threading.Event()

def work():
    while True:
        _native.unwatch_block(0, 1)  # gives the lock away and takes it again
        entered.set()

late = Late()
for _ in range(2):
    threading.Thread(target=work, daemon=True).start()
entered.wait()
print("at its end")
"""


def test_a_daemon_thread_in_native_code_does_not_abort_the_process() -> None:
    for _ in range(6):  # of the module with pybind11's own guard more than half ended by SIGABRT
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=LIMIT_S, check=False
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, "at its end\n", "")
