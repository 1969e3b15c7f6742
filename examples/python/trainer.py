"""The transformers Trainer on this engine. The script names only the ds_config, which the Trainer passes to `deepspeed`.

pip install --no-deps python/deepspeed_name
cleave launch -n 2 -- python examples/python/trainer.py --deepspeed examples/python/trainer.json [--data TEXT]

The Trainer's options set the "auto" values of the ds_config.
"""

from __future__ import annotations

import argparse
import pathlib

import torch
from gpt2 import Text, small_gpt2
from transformers import Trainer, TrainingArguments


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--deepspeed", required=True, help="the ds_config.json")
    parser.add_argument("--data", type=pathlib.Path, help="a text; without it, this project's documents")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--local_rank", type=int, default=-1)
    parser.add_argument("--output", default="runs/trainer", help="where the model goes")
    args = parser.parse_args()
    options = TrainingArguments(
        output_dir=args.output,
        deepspeed=args.deepspeed,
        per_device_train_batch_size=8,
        learning_rate=3e-3,
        max_steps=args.steps,
        logging_steps=20,
        save_strategy="no",
        report_to=[],
        use_cpu=not torch.cuda.is_available(),
    )
    trainer = Trainer(model=small_gpt2(), args=options, train_dataset=Text(args.data))
    loss = trainer.train().training_loss
    if trainer.is_world_process_zero():
        print(f"loss of the training: {loss:.4f}")
    trainer.save_model(args.output)


if __name__ == "__main__":
    main()
