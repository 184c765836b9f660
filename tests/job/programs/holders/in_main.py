"""A list that is local to main(): when the interpreter ends nobody holds it any more. Runs until it is told to end.

argv: a file that ends it; the most steps.
"""

import sys
import time
from pathlib import Path

import torch

import msmemscope


def main():
    losses = []
    for _ in range(int(sys.argv[2])):
        losses.append(torch.ones(5_000))
        msmemscope.step()
        time.sleep(0.05)
        if Path(sys.argv[1]).exists():
            break


main()
