"""Upstream's test of watched blocks: five epochs of a linear layer with an MSE loss; a tensor of 100 x 100 elements is
watched around the loss.

Between mse_loss and mse_loss_backward, and with the latter, there are four operators: detach and _local_scalar_dense of
the loss that is summed up, ones_like and mse_loss_backward of the backward pass. So with
--watch=torch._ops.aten.mse_loss.default,torch._ops.aten.mse_loss_backward.default an epoch has 11 looks: two of the
tensor beside mse_loss; of the loss one when mse_loss has ended, and two beside each of the four. argv: the device.
"""

import sys

import torch

import msmemscope

device = sys.argv[1] if len(sys.argv) > 1 else "cpu"
if device != "cpu":
    import torch_npu  # noqa: F401

model = torch.nn.Linear(10, 10).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data, target = torch.randn(10, 10).to(device), torch.randn(10, 10).to(device)
watched = torch.randn(100, 100).to(device)
total = 0.0
for _ in range(5):
    optimizer.zero_grad()
    output = model(data)
    msmemscope.watcher.watch(watched, name="memscopeStWatch")
    loss = torch.nn.functional.mse_loss(output, target)
    msmemscope.watcher.remove(watched)
    total += loss.detach().item()
    loss.backward()
    optimizer.step()
