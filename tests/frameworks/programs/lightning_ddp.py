"""Trains with Lightning on two processes, of which it starts one itself; rank 1 keeps 1 MiB of each step.
lightning_ddp.py DIRECTORY
"""

import sys

import lightning
import torch
from tiny import BATCH, CLASSES, WIDTH, Net, digest

STEPS = 24


class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net, self.kept = Net(), []

    def training_step(self, batch, _index):
        if self.global_rank == 1:
            self.kept.append(torch.zeros(1 << 18))  # the leak
        x, y = batch
        return torch.nn.functional.cross_entropy(self.net(x), y)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


if __name__ == "__main__":
    lightning.seed_everything(3)
    generator = torch.Generator().manual_seed(5)
    inputs = torch.randn(2 * BATCH * STEPS, WIDTH, generator=generator)
    classes = torch.randint(0, CLASSES, (2 * BATCH * STEPS,), generator=generator)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(inputs, classes), batch_size=BATCH)
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        max_steps=STEPS,
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=sys.argv[1],
    )
    module = Module()
    trainer.fit(module, loader)
    print(f"rank {trainer.global_rank} steps {trainer.global_step} digest {digest(module.parameters())}", flush=True)
