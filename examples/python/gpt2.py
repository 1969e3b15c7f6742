"""GPT-2 with the DeepSpeed interface: AdamW, fp16 with a loss scale, ZeRO-2 and offload to host memory, all set in the ds_config.

deepspeed --num_gpus 2 examples/python/gpt2.py --deepspeed --deepspeed_config examples/python/gpt2.json [--data TEXT]

The model is GPT-2 of transformers with random weights, small enough to train on a CPU in seconds; --model names a published folder. Each
byte of the text is a token, so no tokenizer is needed. Without --data, the text is this project's documentation.
"""

from __future__ import annotations

import argparse
import pathlib

import cleave as deepspeed
import torch
from transformers import GPT2Config, GPT2LMHeadModel

LENGTH, BYTES = 64, 256


class Text(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """Windows of a text with its bytes as tokens. transformers models shift the labels themselves."""

    def __init__(self, path: pathlib.Path | None) -> None:
        documents = sorted(pathlib.Path(__file__).resolve().parents[2].glob("docs/*.md"))
        text = b"".join(file.read_bytes() for file in ([path] if path else documents))
        if len(text) < LENGTH:
            raise SystemExit(f"{path or 'docs/*.md'}: {len(text)} bytes of text; wanted at least {LENGTH}: give a file with --data")
        self.tokens = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()

    def __len__(self) -> int:
        return len(self.tokens) // LENGTH

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        window = self.tokens[index * LENGTH : (index + 1) * LENGTH]
        return {"input_ids": window, "labels": window}


def small_gpt2() -> GPT2LMHeadModel:
    torch.manual_seed(0)
    return GPT2LMHeadModel(
        GPT2Config(vocab_size=BYTES, n_positions=LENGTH, n_embd=64, n_layer=2, n_head=4, bos_token_id=None, eos_token_id=None)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=pathlib.Path, help="text file")
    parser.add_argument("--model", help="transformers folder of a GPT-2 with bytes as tokens")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--local_rank", type=int, default=-1)
    parser.add_argument("--output", type=pathlib.Path, help="folder of checkpoints; a restarted script resumes from it")
    args = deepspeed.add_config_arguments(parser).parse_args()
    model = GPT2LMHeadModel.from_pretrained(args.model) if args.model else small_gpt2()
    engine, _, loader, _ = deepspeed.initialize(args=args, model=model, model_parameters=model.parameters(), training_data=Text(args.data))
    if args.output and (args.output / "latest").exists():
        engine.load_checkpoint(args.output)
    batches = iter(deepspeed.utils.RepeatingLoader(loader))
    while engine.global_steps < args.steps:
        batch = {name: value.to(engine.device) for name, value in next(batches).items()}
        engine.backward(engine(**batch).loss)
        engine.step()
        if engine.is_gradient_accumulation_boundary() and engine.global_rank == 0 and engine.global_steps % 25 == 0:
            print(f"step {engine.global_steps}: loss {engine.last_result.loss:.4f}, loss scale {engine.optimizer.loss_scale:g}")
    if args.output:
        engine.save_checkpoint(args.output)


if __name__ == "__main__":
    main()
