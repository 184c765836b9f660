"""Blocks of two streams of a card. The line that allocates one says what is told of it, how many MiB and on which of
the two; those without are in order, or nobody can know."""

import torch
import torch_npu  # noqa: F401

MIB = (1 << 20) // 4  # elements


def work(operators: int) -> None:
    small = torch.ones(16, device="npu")
    for _ in range(operators):
        small.add_(1)


def peak() -> None:
    large = torch.ones(64 * MIB, device="npu")
    large.sum().item()


main, side = torch.npu.current_stream(), torch.npu.Stream()
print("STREAMS", main.stream_id, side.stream_id, flush=True)

late = torch.ones(16 * MIB, device="npu")  # late_deallocation 16 main
late.sum()
read_there = torch.ones(17 * MIB, device="npu")
recorded = torch.ones(18 * MIB, device="npu")
recorded.sum()
idle = torch.ones(21 * MIB, device="npu")  # temporary_idleness 21 main
idle.sum()
work(3100)
waits = torch.ones(20 * MIB, device="npu")
waits.sum()
side.wait_stream(main)
with torch.npu.stream(side):
    read_there.sum()
    recorded.record_stream(side)
    own = torch.ones(19 * MIB, device="npu")  # late_deallocation 19 side
    own.sum()
    work(3100)
    peak()
    del own
main.wait_stream(side)
peak()
del late, read_there, recorded
idle.sum().item()
waits.sum().item()
