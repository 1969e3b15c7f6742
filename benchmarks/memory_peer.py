#!/usr/bin/env python3
"""Runs one rank of DeepSpeed on CPUs for benchmarks/memory.py: two steps of GPT-2 on random tokens. Each rank prints a line of JSON:
resident
memory before DeepSpeed has the model, after initialize, and at its peak.
"""
import argparse
import json
import resource

import deepspeed
import torch
from transformers import GPT2Config, GPT2LMHeadModel

parser = argparse.ArgumentParser()
parser.add_argument("--local_rank", type=int, default=0)
parser.add_argument("--deepspeed_config", required=True)
parser.add_argument("--seq", type=int, default=256)
args = parser.parse_args()


def resident():
    return next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith("VmRSS"))


deepspeed.init_distributed()
torch.distributed.barrier()
warm = torch.nn.Linear(64, 64)  # loads the libraries of the first product
warm(torch.ones(1, 64)).sum().backward()
before = resident()
config = GPT2Config(resid_pdrop=0, embd_pdrop=0, attn_pdrop=0, use_cache=False)
ds_config = json.load(open(args.deepspeed_config))
with deepspeed.zero.Init(config_dict_or_path=ds_config, enabled=ds_config["zero_optimization"]["stage"] == 3):
    model = GPT2LMHeadModel._from_config(config, attn_implementation="sdpa").train()
engine, _, _, _ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=ds_config)
ready = resident()
tokens = torch.randint(0, 50257, (1, args.seq))
for _ in range(2):
    engine.backward(engine(input_ids=tokens, labels=tokens).loss)
    engine.step()
torch.distributed.barrier()
print(json.dumps({"peer": "deepspeed " + deepspeed.__version__, "rank": torch.distributed.get_rank(), "before": before, "ready": ready,
                  "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}), flush=True)
