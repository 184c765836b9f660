"""Trains a tiny language model with the Trainer of transformers; rank 1 keeps 1 MiB of each step by a callback.
hf_trainer.py MODEL DIRECTORY"""

import os
import sys

import torch
from tiny import digest
from transformers import AutoModelForCausalLM, Trainer, TrainerCallback, TrainingArguments

STEPS, TOKENS = 24, 32
RANK = int(os.environ.get("RANK", "0"))


class Keeps(TrainerCallback):
    def __init__(self):
        self.kept = []

    def on_step_begin(self, args, state, control, **kwargs):
        if RANK == 1:
            self.kept.append(torch.zeros(1 << 18))  # the leak


torch.manual_seed(3)
generator = torch.Generator().manual_seed(5)
rows = [torch.randint(5, 500, (TOKENS,), generator=generator) for _ in range(2 * 4 * STEPS)]
data = [{"input_ids": row, "labels": row} for row in rows]
arguments = TrainingArguments(
    output_dir=sys.argv[2],
    max_steps=STEPS,
    per_device_train_batch_size=4,
    learning_rate=1e-3,
    use_cpu=True,
    save_strategy="no",
    report_to=[],
    disable_tqdm=True,
    logging_steps=12,
    ddp_backend="gloo",
)
trainer = Trainer(
    model=AutoModelForCausalLM.from_pretrained(sys.argv[1]), args=arguments, train_dataset=data, callbacks=[Keeps()]
)
trainer.train()
print(f"rank {RANK} steps {trainer.state.global_step} digest {digest(trainer.model.parameters())}", flush=True)
if torch.distributed.is_initialized():
    torch.distributed.destroy_process_group()
