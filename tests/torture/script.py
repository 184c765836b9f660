"""The program in library mode: nobody launched it under the tool. script.py OUTPUT FILE CALLS PAUSE_US STATUS"""

import ctypes
import sys
from pathlib import Path

import msmemscope

output, progress, calls, pause_us, status = sys.argv[1:]
library = ctypes.CDLL(str(Path(sys.argv[0]).parent / "liballocate.so"))
msmemscope.config(output_path=output, analysis="leaks")
msmemscope.start()
failed = library.allocate(progress.encode(), ctypes.c_uint64(int(calls)), ctypes.c_uint(int(pause_us)))
sys.exit(failed or int(status))
