"""Cases of monitor_test.py for ranks; each returns JSON or prints lines."""

from __future__ import annotations

import sys
from typing import Any

import cleave as deepspeed
import models
import pipeline_cases
import torch
import transformers
from engine_cases import config


def _writes(folder: str) -> dict[str, Any]:
    return {name: {"enabled": True, "output_path": f"{folder}/{name}", "job_name": "job"} for name in ("tensorboard", "csv_monitor")}


def trained(folder: str, stage: int) -> dict[str, Any]:
    """Trains three steps with both monitors, and adds a curve of the script."""
    engine = deepspeed.initialize(model=models.seeded(models.Mlp), config=config(stage, **_writes(folder), fp16={"enabled": True}))[0]
    rows = []
    for step in range(3):
        for micro in range(engine.gradient_accumulation_steps()):
            engine.backward(models.loss(engine, models.batch(step, micro, engine.global_rank)))
            engine.step()
        result = engine.last_result
        engine.monitor.write_events([("Eval/accuracy", torch.tensor(0.5 * step), engine.global_samples)])
        rows.append([engine.global_samples, result.loss, result.lr, result.loss_scale, result.grad_norm])
    return {"rows": rows, "enabled": engine.monitor.enabled}


def pipeline(folder: str) -> list[float]:
    """Trains a pipeline of two stages; returns its losses."""
    engine = pipeline_cases.made(2, 1, **_writes(folder))
    return [loss for loss, _ in pipeline_cases.trained(engine, 2)]


def native(folder: str, **more: Any) -> list[float]:
    """Trains a model that the engine computes; returns its losses."""
    sizes = {"vocab_size": 64, "n_positions": 16, "n_embd": 16, "n_layer": 2, "n_head": 2}
    no_dropout = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, **no_dropout))
    made = config(1, gradient_accumulation_steps=1, cleave={"native": True, "sequence_length": 16}, **(_writes(folder) if folder else more))
    engine = deepspeed.initialize(model=model, config=made)[0]
    losses = []
    for _ in range(2):
        tokens = torch.randint(0, 64, (4, 16))
        engine.backward(engine(input_ids=tokens, labels=tokens).loss)
        engine.step()
        losses.append(engine.last_result.loss)
    return losses


def to_wandb(fake: str, section: dict[str, Any]) -> list[list[float]]:
    """Trains two steps with the package wandb in the folder `fake`, saves a checkpoint and destroys the engine; returns the steps."""
    sys.path.insert(0, fake)
    engine = deepspeed.initialize(model=models.seeded(models.Mlp), config=config(1, gradient_accumulation_steps=1, wandb=section))[0]
    rows = []
    for step in range(2):
        engine.backward(models.loss(engine, models.batch(step, 0, engine.global_rank)))
        engine.step()
        rows.append([engine.global_samples, engine.last_result.loss, engine.last_result.lr])
    engine.monitor.write_events([("Eval/accuracy", 0.5, engine.global_samples)])
    engine.save_checkpoint(f"{fake}/saved")
    engine.destroy()
    return rows


def reported(folder: str) -> None:
    """Trains one step with an MLflow folder, after a warning of the script's ds_config."""
    section = {"enabled": True, "tracking_uri": folder, "run_name": "of a script"}
    made = config(
        1, gradient_accumulation_steps=1, memory_breakdown=True, steps_per_print=1, cleave={"mlflow": section}, no_such_section={}
    )
    engine = deepspeed.initialize(model=models.seeded(models.Mlp), config=made)[0]
    engine.backward(models.loss(engine, models.batch(0, 0, engine.global_rank)))
    engine.step()
    engine.save_checkpoint(f"{folder}/saved")
    engine.load_checkpoint(f"{folder}/saved")


def lines(more: dict[str, Any]) -> None:
    """Trains four steps of one micro-batch, with these sections."""
    engine = deepspeed.initialize(model=models.seeded(models.Mlp), config=config(1, gradient_accumulation_steps=1, **more))[0]
    for step in range(4):
        engine.backward(models.loss(engine, models.batch(step, 0, engine.global_rank)))
        engine.step()
