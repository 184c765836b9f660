"""Trains with accelerate on CPU, two batches for each step of the optimizer; rank 1 keeps 1 MiB of each step."""

import torch
from accelerate import Accelerator
from tiny import Net, batches, digest

STEPS, KEPT = 24, []

accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
torch.manual_seed(3)
net = Net()
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0 / (1 + step))
net, optimizer, schedule = accelerator.prepare(net, optimizer, schedule)
for x, y in batches(2 * STEPS, accelerator.process_index):
    with accelerator.accumulate(net):
        loss = torch.nn.functional.cross_entropy(net(x), y)
        accelerator.backward(loss)
        if accelerator.process_index == 1 and accelerator.sync_gradients:
            KEPT.append(torch.zeros(1 << 18))  # the leak
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
print(f"rank {accelerator.process_index} of {accelerator.num_processes} digest {digest(net.parameters())}", flush=True)
accelerator.end_training()
