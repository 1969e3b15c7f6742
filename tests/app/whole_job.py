#!/usr/bin/env python3
"""The complete path of a published model, compared with transformers: made there, trained here, used there again.

For a small Llama, Qwen3 and GPT-2: transformers makes the model, and the tokenizers library its tokenizer, from a text. Then
  import     the loss of every window equals that of transformers, in double precision, within 1e-5
  train      50 steps at pipe 2 x data 2 x ZeRO-3, on the text through that tokenizer
  export     transformers loads it; the losses agree within 1e-5, and greedy continuations are the same text
  digest     of the checkpoint, of its re-imported export, and of an export of that are equal

Not part of the suite, because it needs torch, transformers and tokenizers. Usage: whole_job.py CLEAVE [FAMILY...]
"""
import json
import pathlib
import subprocess
import sys
import tempfile

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast,
                          Qwen3Config, Qwen3ForCausalLM)

ROOT = pathlib.Path(__file__).resolve().parents[2]
VOCAB, SEQ, STEPS = 512, 64, 50
DECODER = dict(vocab_size=VOCAB, hidden_size=64, intermediate_size=96, num_hidden_layers=4, num_attention_heads=4,
               num_key_value_heads=2, max_position_embeddings=128, bos_token_id=0, eos_token_id=0, initializer_range=0.1)
FAMILIES = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**DECODER, tie_word_embeddings=False)),
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**DECODER, head_dim=32, tie_word_embeddings=True)),
    "gpt2": lambda: GPT2LMHeadModel(GPT2Config(vocab_size=VOCAB, n_positions=128, n_embd=64, n_layer=4, n_head=4, attn_pdrop=0.0,
                                               resid_pdrop=0.0, embd_pdrop=0.0, bos_token_id=0, eos_token_id=0, initializer_range=0.1)),
}
CONFIG = {"train_batch_size": 8, "train_micro_batch_size_per_gpu": 2, "gradient_clipping": 1.0,
          "optimizer": {"type": "AdamW", "params": {"lr": 3e-3}},
          "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0}, "pipeline": {"stages": 2}}


def cleave(program, *args):
    r = subprocess.run([program, *map(str, args)], capture_output=True, text=True, timeout=600)
    if r.returncode:
        sys.exit(f"{' '.join(map(str, args))}\nended with {r.returncode}:\n{r.stdout[-2000:]}{r.stderr[-2000:]}")
    return r.stdout


def make_tokenizer(text, folder):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train([str(text)], trainers.BpeTrainer(vocab_size=VOCAB, special_tokens=["<|endoftext|>"], show_progress=False,
                                                     initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|endoftext|>").save_pretrained(folder)
    return tokenizer


def loss_of(folder, ids):
    """Returns the mean over all whole windows, in double precision."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64, attn_implementation="eager").eval()
    windows = (len(ids) - 1) // SEQ
    inputs = torch.tensor(ids[:windows * SEQ]).view(windows, SEQ)
    targets = torch.tensor(ids[1:windows * SEQ + 1]).view(windows, SEQ)
    with torch.no_grad():
        return model, torch.nn.functional.cross_entropy(model(inputs).logits.flatten(0, 1), targets.flatten()).item()


def digest(program, folder):
    """Returns the digest of the weights."""
    lines = cleave(program, "digest", folder, "--quiet").splitlines()
    return next(line.split()[0] for line in lines if line.endswith("weights"))


def same(what, got, want, bound=1e-5):
    if abs(got / want - 1) > bound:
        sys.exit(f"error: {what}: {got}, wanted {want}")
    print(f"  {what}: {got:.7f}, transformers {want:.7f}")


def whole_job(program, family, work):
    print(family)
    text, validation, model = work / "text.txt", work / "validation.txt", work / "model"
    torch.manual_seed(5)
    FAMILIES[family]().save_pretrained(model)
    tokenizer = make_tokenizer(text, model)
    ids = tokenizer.encode(validation.read_text()).ids

    cleave(program, "import", model, work / "imported", "--seq_len", SEQ)
    _, want = loss_of(model, ids)
    cleave(program, "data", "tokenize", validation, work / "validation.bin", "--tokenizer", model)
    evaluate = ["--data", work / "validation.bin"]
    same("loss of the import", float(cleave(program, "eval", work / "imported", *evaluate).split()[1]), want)

    (work / "ds_config.json").write_text(json.dumps(CONFIG))
    cleave(program, "launch", "-n", 4, "--", "train", "--deepspeed_config", work / "ds_config.json", "--model", model, "--data", text,
           "--seq_len", SEQ, "--steps", STEPS, "--output", work / "run")
    cleave(program, "export", work / "run", work / "exported", "--dtype", "fp32", "--max_shard_size", "200KB")
    trained, want = loss_of(work / "exported", ids)
    same("loss after training", float(cleave(program, "eval", work / "run", *evaluate).split()[1]), want)

    for prompt in ("In the beginning", "And he said"):
        start = torch.tensor([tokenizer.encode(prompt).ids])
        with torch.no_grad():
            out = trained.generate(start, attention_mask=torch.ones_like(start), max_new_tokens=24, do_sample=False, pad_token_id=0)
        want = tokenizer.decode(out[0].tolist())
        got = cleave(program, "generate", work / "run", "--prompt", prompt, "--tokens", 24, "--temperature", 0).rstrip("\n")
        if got != want.rstrip("\n"):
            sys.exit(f"error: {got!r} is generated here, {want!r} by transformers")
        print(f"  {got!r}")

    cleave(program, "import", work / "exported", work / "back", "--seq_len", SEQ)
    if digest(program, work / "back") != digest(program, work / "run"):
        sys.exit("error: the digest changed on the way out and back")
    print(f"  digest of weights, here and back: {digest(program, work / 'back')}")


def main():
    transformers.utils.logging.disable_progress_bar()
    program = str(pathlib.Path(sys.argv[1]).resolve())
    for family in sys.argv[2:] or FAMILIES:
        with tempfile.TemporaryDirectory() as folder:
            work = pathlib.Path(folder)
            subprocess.run([ROOT / "scripts/fetch_kjv.sh", work / "all.txt"], check=True)
            verses = (work / "all.txt").read_text().splitlines(keepends=True)
            (work / "text.txt").write_text("".join(verses[:3000]))
            (work / "validation.txt").write_text("".join(verses[3000:3300]))
            whole_job(program, family, work)
    print("all the same")


if __name__ == "__main__":
    main()
