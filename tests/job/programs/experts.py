"""Experts on four ranks, one each, over gloo: a router sends tokens to them and gets them back. With "hot" the expert
of rank 2 is the favourite of every rank's router; with "even" there is none."""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

TOKENS, WIDTH, HIDDEN, STEPS = 4096, 16, 1024, 14


class Exchange(torch.autograd.Function):
    """Rows to the other ranks, and their gradients back."""

    @staticmethod
    def forward(ctx, rows, outgoing, incoming):
        ctx.splits = outgoing, incoming
        received = rows.new_empty(sum(incoming), rows.shape[1])
        dist.all_to_all_single(received, rows.contiguous(), incoming, outgoing)
        return received

    @staticmethod
    def backward(ctx, gradient):
        outgoing, incoming = ctx.splits
        return Exchange.apply(gradient, incoming, outgoing), None, None


class Experts(nn.Module):
    """The expert of this rank, and the router to all of them."""

    def __init__(self, favourite):
        super().__init__()
        self.router = nn.Linear(WIDTH, dist.get_world_size())
        self.up, self.down = nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, WIDTH)
        self.favourite = favourite

    def forward(self, tokens):
        scores = self.router(tokens).softmax(-1)
        choice = (scores + self.favourite * torch.rand_like(scores)).argmax(-1)
        order = choice.argsort()
        outgoing = choice.bincount(minlength=len(self.favourite))
        incoming = torch.empty_like(outgoing)
        dist.all_to_all_single(incoming, outgoing)
        self.got = int(incoming.sum())
        mine = Exchange.apply(tokens[order], outgoing.tolist(), incoming.tolist())
        mine = self.up(mine)  # EXPERT
        mine = self.down(torch.relu_(mine))
        back = Exchange.apply(mine, incoming.tolist(), outgoing.tolist())
        return torch.empty_like(tokens).index_copy(0, order, back) * scores.amax(-1, keepdim=True)


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("ep",))
    favourite = torch.ones(dist.get_world_size())
    if sys.argv[1] == "hot":
        favourite[2] = 1.25
    model = Experts(100 * favourite)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for _ in range(STEPS):
        loss = model(torch.randn(TOKENS, WIDTH)).square().mean()
        loss.backward()  # BACKWARD
        optimizer.step()
        optimizer.zero_grad()
    print(f"rank {dist.get_rank()} tokens {model.got}")
    dist.destroy_process_group()


main()
