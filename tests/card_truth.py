"""A training whose memory on a card torch itself tells at every step, and what a run of it must say of it.

``python card_truth.py cuda|npu FILE`` is the program: JSON in FILE. tests/cuda runs it on a GPU where there is one,
tests/npu on the simulated card, so that the program and what is asked of its run are tried where there is none.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

STEPS = 16
KEPT = 1 << 20
TOO_MUCH = 1 << 40
PARTS = ("weight", "gradient", "optimizer_state")


def main(device: str, file: Path) -> None:
    import torch
    from torch import nn

    import msmemscope

    if device == "npu":
        import torch_npu  # noqa: F401 - makes `npu` a device
    card: Any = getattr(torch, device)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)
    kept: list[torch.Tensor] = []
    steps, parts = [], []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = model(torch.randn(64, 256, device=device)).square().mean()
        loss.backward()
        del loss
        kept.append(torch.empty(KEPT, dtype=torch.uint8, device=device))  # the leak
        optimizer.step()  # ends the step
        steps.append(levels(card))
        card.reset_peak_memory_stats()
        parts.append(held(card, model, optimizer))
    msmemscope.take_snapshot(name="at the end")
    segments = [
        [one["address"], one["total_size"], sum(b["size"] for b in one["blocks"] if b["state"] == "active_allocated")]
        for one in card.memory_snapshot()
    ]
    try:
        torch.empty(TOO_MUCH, dtype=torch.uint8, device=device)  # the request
    except RuntimeError as error:
        if "out of memory" not in str(error):
            raise
    file.write_text(json.dumps({"steps": steps, "parts": parts, "segments": sorted(segments)}))


def levels(card: Any) -> dict[str, int]:
    return {
        "end_bytes": card.memory_allocated(),
        "end_reserved_bytes": card.memory_reserved(),
        "peak_bytes": card.max_memory_allocated(),
    }


def held(card: Any, model: Any, optimizer: Any) -> dict[str, int]:
    """Bytes of the allocator's blocks behind the model's tensors on the card."""
    blocks = {}
    for segment in card.memory_snapshot():
        address = segment["address"]
        for block in segment["blocks"]:
            blocks[block.get("address", address)] = block["size"]
            address += block["size"]
    parameters = list(model.parameters())
    states = [value for state in optimizer.state.values() for value in state.values() if hasattr(value, "data_ptr")]
    tensors = parameters, [one.grad for one in parameters if one.grad is not None], states
    return {
        name: sum(blocks[one.untyped_storage().data_ptr()] for one in of_part if one.device.type != "cpu")
        for name, of_part in zip(PARTS, tensors, strict=True)
    }


def line_of(text: str) -> int:
    """The line of this file that ends in `# TEXT`."""
    lines = Path(__file__).read_text().splitlines()
    (found,) = [number for number, line in enumerate(lines, 1) if line.endswith(f"  # {text}")]
    return found


def require(run_directory: Path, device: str, said: dict[str, Any]) -> None:
    """AssertionError where the run says anything else than torch did."""
    import msmemscope

    run = msmemscope.open_run(run_directory)
    pool, card = {"cuda": "CUDA", "npu": "PTA"}[device], f"{device}:0"
    steps = [row for row in run.steps(device=card, pool=pool).to_pylist() if row["allocs"]]
    assert [{name: row[name] for name in said["steps"][0]} for row in steps[:STEPS]] == said["steps"]

    for n in (0, STEPS // 2, STEPS - 1):
        tree = [row for row in run.owners(when="step_end", step=steps[n]["step"]).to_pylist() if row["device"] == card]
        of_parts = {
            name: sum(row["own_bytes"] for row in tree if row["pool"] == pool and name in row["owner"].split("@"))
            for name in PARTS
        }
        assert of_parts == said["parts"][n], f"iteration {n}"

    (leak,) = [one for one in run.leaks().to_pylist() if one["device"].startswith(device)]
    assert f"card_truth.py:{line_of('the leak')}" in leak["sentence"]
    assert KEPT <= leak["bytes_per_step"] <= KEPT + 4096

    (out,) = [one for one in run.findings("oom").to_pylist() if one["kind"] == "out_of_memory"]
    assert f"card_truth.py:{line_of('the request')}" in out["sentence"]
    assert "1.0 TiB" in out["sentence"]

    columns = ["name", "ptr", "size", "used"]
    found = run.events(kinds=["SNAPSHOT_SEGMENT"], columns=columns).read_all().to_pylist()
    assert (
        sorted([row["ptr"], row["size"], row["used"]] for row in found if row["name"] == "at the end")
        == said["segments"]
    )


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
