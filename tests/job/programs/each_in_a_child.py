"""Runs the programs that are named, one after the other, each to its end in a forked child: torch and what an
optimizer imports are there once for all of them. A line for each: the child's pid and the program."""

import gc
import os
import runpy
import sys


def main():
    gc.disable()  # looking for what can be collected takes a fifth of these imports, and finds nothing
    import torch._dynamo  # noqa: F401 - by the first optimizer of each, otherwise

    gc.freeze()  # what is imported is gone through by no collection of a child
    gc.enable()
    for program in sys.argv[1:]:
        child = os.fork()
        if child == 0:
            sys.argv = [program]
            runpy.run_path(program, run_name="__main__")
            return  # to the interpreter's end, as a program of its own goes
        print(child, program, flush=True)
        if os.waitpid(child, 0)[1] != 0:
            sys.exit(f"{program} failed")


main()
