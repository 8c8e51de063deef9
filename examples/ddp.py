# SPDX-License-Identifier: Apache-2.0
"""Trains a small network with DistributedDataParallel. Run it with

python -m torch.distributed.run --nproc-per-node 2 examples/ddp.py
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    dist.init_process_group("tpu_dist")
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1)).to("tpu"))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    inputs = torch.rand(256, 8)
    targets = inputs.square().sum(1, keepdim=True)
    mine, wanted = inputs[rank::size].to("tpu"), targets[rank::size].to("tpu")
    for step in range(101):
        loss = nn.functional.mse_loss(model(mine), wanted)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 50 == 0:
            mean = loss.detach().clone()
            dist.all_reduce(mean, dist.ReduceOp.AVG)
            if rank == 0:
                print(f"step {step}: loss {mean.item():.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
