"""Cases of keys_test.py for ranks: what a script can see of a ds_config."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pathlib
import re
from typing import Any

import cleave as deepspeed
import torch
import transformers

STEPS, TOKENS, VOCABULARY = 9, 16, 96
SIZES = {"vocab_size": VOCABULARY, "n_positions": 64, "n_embd": 32, "n_layer": 4, "n_head": 4}
NO_DROPOUT = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)


def _gpt() -> torch.nn.Module:
    torch.manual_seed(0)
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**SIZES, **NO_DROPOUT))


def _train(engine: Any, steps: int, folder: str) -> list[list[Any]]:
    """Trains; returns the numbers of each step."""
    numbers = []
    for step in range(steps):
        for micro in range(engine.gradient_accumulation_steps()):
            torch.manual_seed(1000 * step + 10 * micro + engine._data_rank)
            tokens = torch.randint(0, VOCABULARY, (engine.train_micro_batch_size_per_gpu(), TOKENS))
            engine.backward(engine(input_ids=tokens, labels=tokens).loss)
            engine.step()
        r = engine.last_result
        numbers.append([r.loss, r.lr, r.grad_norm, r.loss_scale, r.skipped])
        if folder:
            engine.save_checkpoint(folder, tag=f"global_step{engine.global_steps}")
    return numbers


def _table(text: str) -> list[Any]:
    return re.findall(r"(all_reduce|reduce_scatter|all_gather) +([\d.]+ \S+) +\d+ +(\d+)", text)


def seen(config: dict[str, Any], saves: bool, folder: str) -> dict[str, Any]:
    """Trains with a configuration; returns everything that it may change, or the error."""
    os.makedirs(folder, exist_ok=True)
    out, engine = io.StringIO(), None
    found: dict[str, Any] = {}
    with contextlib.redirect_stdout(out):
        try:
            data: Any = [torch.tensor(i) for i in range(23)]
            engine, _, loader, _ = deepspeed.initialize(model=_gpt(), config=config, training_data=data)
            facts = engine._native.facts()
            found |= {"planned": facts["planned"], "notes": facts["notes"], "units": facts["units"], "batches": len(loader)}
            found["numbers"] = _train(engine, STEPS, f"{folder}/saved" if saves else "")
            found["calls"] = _table(engine.monitor.collectives())
        except (deepspeed.CleaveError, RuntimeError) as error:
            found["error"] = str(error)
        finally:
            if engine is not None:
                engine.destroy()
    if engine is not None and engine.global_rank == 0:
        found["files"] = sorted(re.sub(r"tfevents.*", "", str(p.relative_to(folder))) for p in pathlib.Path(folder).rglob("*"))
    text = out.getvalue()
    found["profile"] = re.findall(r"after \d+ steps", text)
    found["warnings"] = [line for line in text.splitlines() if "warning" in line or "has no effect" in line]
    found["lines"] = sorted({_shape(line) for line in text.splitlines() if line not in found["warnings"]})
    return found


def _shape(line: str) -> str:
    """Returns the parts of a line that are equal in each run."""
    if line.startswith("most time"):
        return "most time"
    return "time (ms)" if line.startswith("time (ms)") else re.sub(r"[0-9.]+|[KMGi]*B(?= )|[KMG](?= )", "", " ".join(line.split()))


def outcome(key: str, pair: list[dict[str, Any]], saves: bool, folder: str) -> str:
    """Returns how a script that trains with two values of a key sees it: honoured, warned, error or nothing."""
    both = [seen(config, saves, f"{folder}/{i}") for i, config in enumerate(pair)]
    errors = [one.get("error", "") for one in both]
    if any(key in line for one in both for line in one["warnings"]):
        return "warned"
    fields = sorted({*both[0], *both[1]} - {"warnings"})
    differ = [f for f in fields if len({re.sub(rf"{folder}/[01]", "", json.dumps(one.get(f))) for one in both}) > 1]
    unsupported = any(key in error and "not supported" in error for error in errors)
    if differ and not unsupported:
        return "honoured: " + ", ".join(differ)
    # An error may name the section of a feature, or the number of stages.
    names = [key, "pipeline.stages" if key.startswith("pipeline.") else key, key.rpartition(".")[0] if key.count(".") > 1 else key]
    return "error" if any(name in "".join(errors) for name in names) else f"nothing: {errors}"


def outcomes(rows: list[Any], folder: str) -> dict[str, str]:
    """Returns the outcome of each key."""
    answers = {}
    for key, pair, saves in rows:
        answers[key] = outcome(key, pair, saves, f"{folder}/{key}")
    return answers
