"""The network of cifar10.py as a pipeline: a list of layers. Each rank builds the layers of its stage.

cleave launch -n 2 -- python examples/python/pipeline.py --deepspeed_config examples/python/pipeline.json [--stages 2] [--data FOLDER]

The remaining ranks are data parallel: -n 4 with two stages trains two pipelines.
"""

from __future__ import annotations

import argparse
import pathlib

import cleave as deepspeed
from cifar10 import CLASSES, data_of
from cleave.pipe import LayerSpec, PipelineModule
from cleave.utils import RepeatingLoader
from torch import nn
from torch.utils.data import DataLoader


def layers() -> list[LayerSpec]:
    def conv(inputs: int, outputs: int) -> list[LayerSpec]:
        return [LayerSpec(nn.Conv2d, inputs, outputs, 5), LayerSpec(nn.ReLU), LayerSpec(nn.MaxPool2d, 2)]

    def linear(inputs: int, outputs: int) -> list[LayerSpec]:
        return [LayerSpec(nn.Linear, inputs, outputs), LayerSpec(nn.ReLU)]

    front = [*conv(3, 6), *conv(6, 16), LayerSpec(nn.Flatten)]
    return [*front, *linear(16 * 5 * 5, 120), *linear(120, 84), LayerSpec(nn.Linear, 84, CLASSES)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=pathlib.Path, help="a folder with CIFAR-10's binary files")
    parser.add_argument("--stages", type=int, default=2)
    parser.add_argument("--steps", type=int, default=90)
    parser.add_argument("--local_rank", type=int, default=-1)
    parser.add_argument("--output", type=pathlib.Path, help="where the checkpoint goes")
    args = deepspeed.add_config_arguments(parser).parse_args()
    trained_on, held_out = data_of(args)
    net = PipelineModule(layers(), num_stages=args.stages, loss_fn=nn.CrossEntropyLoss(), seed_layers=True)
    parameters = [p for p in net.parameters() if p.requires_grad]
    engine, *_ = deepspeed.initialize(args=args, model=net, model_parameters=parameters, training_data=trained_on)
    for step in range(args.steps):
        loss = engine.train_batch()
        if engine.global_rank == 0 and (step + 1) % 30 == 0:
            print(f"step {step + 1}: loss {loss:.4f}, gradient norm {engine.get_global_grad_norm():.3f}")
    if args.output:
        engine.save_checkpoint(args.output)
    batches = DataLoader(held_out, engine.train_micro_batch_size_per_gpu(), drop_last=True)
    held_out_loss = engine.eval_batch(iter(RepeatingLoader(batches)), num_micro_batches=len(batches))
    if engine.global_rank == 0:
        print(f"loss of held-out images: {held_out_loss:.4f}")


if __name__ == "__main__":
    main()
