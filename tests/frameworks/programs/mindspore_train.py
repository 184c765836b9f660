"""Trains with MindSpore on CPU, alone or under msrun; gradients are summed over the ranks."""

import os

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

import msmemscope

STEPS = 24

ms.set_device("CPU")
ms.set_context(mode=1)
rank, size = 0, 1
together = "MS_ROLE" in os.environ
if together:
    from mindspore.communication import get_group_size, get_rank, init

    init()
    rank, size = get_rank(), get_group_size()
ms.set_seed(1)
net = nn.SequentialCell(nn.Dense(64, 128), nn.ReLU(), nn.Dense(128, 16))
optimizer = nn.Adam(net.trainable_params(), learning_rate=1e-3)
loss_function = nn.CrossEntropyLoss()
gradients_of = ms.value_and_grad(lambda x, y: loss_function(net(x), y), None, optimizer.parameters)
reduce = nn.DistributedGradReducer(optimizer.parameters, mean=True, degree=size) if together else lambda one: one
for step in range(STEPS):
    random = np.random.RandomState(step * size + rank)
    x = Tensor(random.randn(8, 64).astype(np.float32))
    y = Tensor(random.randint(0, 16, (8,)).astype(np.int32))
    loss, gradients = gradients_of(x, y)
    optimizer(reduce(gradients))
    msmemscope.step()
weights = float(net[0].weight.asnumpy().sum())
if together:
    weights = float(ops.AllReduce()(Tensor(np.array([weights], np.float32))).asnumpy()[0])
print(f"rank {rank} of {size} weights {weights:.6f} loss {float(loss.asnumpy()):.6f}", flush=True)
if together:
    from mindspore.communication import release

    release()  # else the scheduler waits for this rank
