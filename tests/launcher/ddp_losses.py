#!/usr/bin/env python3
"""A typical PyTorch script: DDP over Gloo with ranks from the launcher. It prints the same losses under Cleave's launcher as under
DeepSpeed's. Run it by hand, because it needs torch; DeepSpeed's CPU accelerator reads the number of ranks from LOCAL_SIZE:

    build/release/bin/deepspeed --num_gpus 2 tests/launcher/ddp_losses.py
    DS_ACCELERATOR=cpu LOCAL_SIZE=2 VENV/bin/deepspeed --num_gpus 2 tests/launcher/ddp_losses.py
"""
import argparse
import os

import torch
import torch.distributed as dist

parser = argparse.ArgumentParser()
parser.add_argument("--local_rank", type=int, required=True)
args = parser.parse_args()
assert args.local_rank == int(os.environ["LOCAL_RANK"])
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
model = torch.nn.parallel.DistributedDataParallel(net)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
generator = torch.Generator().manual_seed(1 + rank)
for step in range(5):
    x = torch.randn(16, 8, generator=generator)
    loss = (model(x) - x.square().sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    dist.all_reduce(loss := loss.detach())
    if rank == 0:
        print(f"step {step + 1} loss {loss.item() / dist.get_world_size():.9g}", flush=True)
dist.destroy_process_group()
