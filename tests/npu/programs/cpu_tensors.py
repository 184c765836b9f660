"""Twin of upstream's CPU-tensor smoke program: tensors made on the host, moved to npu:0 and back, in one step."""

from __future__ import annotations

import mstx
import torch
import torch_npu  # noqa: F401 - makes `npu` a device


def main() -> None:
    torch.npu.set_device(0)
    step = mstx.range_start("step start")
    on_card = torch.randn(16, 16).to("npu:0")
    listed = torch.tensor([1.0, 2.0, 3.0])
    back = on_card.to("cpu")
    again = on_card.cpu()
    assert torch.equal(back, again)
    assert listed.sum() == 6
    mstx.range_end(step)


if __name__ == "__main__":
    main()
