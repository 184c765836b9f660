"""One block of each inefficient sort is alive at the peak: `planted.py`. The line that allocates it says what and how
many MiB. `planted.py clean` does the same work without."""

import sys

import torch

MIB = (1 << 20) // 4  # elements
IS_CLEAN = sys.argv[1:] == ["clean"]


def work(small: torch.Tensor, operators: int) -> None:
    for _ in range(operators):
        small.add_(1)


def peak(small: torch.Tensor) -> None:
    large = torch.ones(64 * MIB)
    large.sum().item()
    small.add_(large[0])


def planted(small: torch.Tensor) -> None:
    early = torch.empty(16 * MIB)  # early_allocation 16
    late = torch.ones(17 * MIB)  # late_deallocation 17
    late.sum().item()
    idle = torch.ones(18 * MIB)  # temporary_idleness 18
    unused = torch.empty(19 * MIB)  # unused_allocation 19
    base = torch.ones(20 * MIB)
    dead = base.mul(2)  # dead_write 20
    del base
    done = torch.ones(21 * MIB)  # late_deallocation 21
    done.sum().item()
    replaced = torch.empty(22 * MIB)  # dead_write 22
    replaced.fill_(1)
    redundant = torch.ones(21 * MIB)  # redundant_allocation 21
    idle.sum().item()
    work(small, 3100)
    redundant.sum().item()
    peak(small)
    redundant.sum().item()
    work(small, 40)
    idle.sum().item()
    early.fill_(1)
    early.sum().item()
    replaced.zero_()  # nobody has read the ones
    replaced.sum().item()
    del early, late, idle, unused, dead, done, replaced, redundant


def clean(small: torch.Tensor) -> None:
    for size in (17, 18, 20, 21):
        torch.ones(size * MIB).sum().item()
    work(small, 3100)
    needed = torch.ones(21 * MIB)
    needed.sum().item()
    replaced = torch.ones(22 * MIB)
    replaced.sum().item()
    peak(small)
    needed.sum().item()
    replaced.sum().item()
    replaced.zero_()
    replaced.sum().item()
    del needed, replaced
    work(small, 40)
    torch.empty(16 * MIB).fill_(1).sum().item()


if __name__ == "__main__":
    counter = torch.zeros(1)
    (clean if IS_CLEAN else planted)(counter)
    assert counter.item() > 3000
