"""Cases of checkpoint_test.py for ranks: trainings that resume from checkpoints of other programs."""

from __future__ import annotations

import contextlib
import io
from typing import Any

import cleave as deepspeed
import safetensors.torch
import torch
import transformers


def _groups(module: torch.nn.Module, decay: float) -> list[dict[str, Any]]:
    """Returns groups with weight decay for matrices, as in cleave train."""
    parameters = list(module.parameters())
    return [
        {"params": [p for p in parameters if p.dim() > 1], "weight_decay": decay},
        {"params": [p for p in parameters if p.dim() == 1], "weight_decay": 0.0},
    ]


def _engine(config: str, stage: int, given: dict[str, Any] | None = None, more: dict[str, Any] | None = None) -> Any:
    """Returns an engine around a transformers model with random weights."""
    torch.manual_seed(1)
    model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.from_pretrained(config))
    made = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 20}}
    optimizer = None if given else torch.optim.AdamW(_groups(model, 0.1), lr=1e-2)
    groups = _groups(model, 0.1) if given else None
    return deepspeed.initialize(model=model, optimizer=optimizer, model_parameters=groups, config={**made, **(given or more or {})})[0]


def _step(engine: Any, inputs: torch.Tensor, targets: torch.Tensor) -> float:
    if engine.config.get("cleave", {}).get("native"):
        ids = torch.cat([inputs, targets[:, -1:]], dim=1)
        engine.backward(engine(ids, labels=ids).loss)
        engine.step()
        return float(engine.last_result.loss)
    logits = engine(inputs).logits
    engine.backward(torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten()))
    engine.step()
    return float(engine.last_result.loss)


def of_the_trainer(model: str, windows: list[list[int]], saved: str, stage: int, given: dict[str, Any], out: str) -> dict[str, Any]:
    """Trains two steps from a checkpoint of cleave train at step 2, and saves. Each rank has one of the windows."""
    engine = _engine(model, stage, given)
    window = torch.tensor(windows[engine.global_rank])[None]
    path, client = engine.load_checkpoint(saved, "global_step2")
    at = (engine.global_steps, engine.lr_scheduler.last_batch_iteration)
    losses = [_step(engine, window[:, :-1], window[:, 1:]) for _ in range(2)]
    engine.save_checkpoint(out, client_state={"mine": 1})
    engine.destroy()
    return {"path": path, "client": client, "at": at, "losses": losses}


def of_deepspeed(folder: str, tokens: list[int], stage: int, precision: str) -> dict[str, Any]:
    """Trains three steps from a DeepSpeed checkpoint, with the same tokens on each rank."""
    engine = _engine(folder, stage, more={} if precision == "fp32" else {precision: {"enabled": True}})
    _, client = engine.load_checkpoint(folder)
    counters = [engine.global_steps, engine.skipped_steps, engine.global_samples]
    want = safetensors.torch.load_file(f"{folder}.expected.safetensors")
    states = [(kind, name) for kind, _, name in (key.partition(".") for key in want) if name]
    far = [
        (engine.parameters_of(name, kind.replace("fp32", "master")) - want[f"{kind}.{name}"]).abs().max().item() for kind, name in states
    ]
    scales = [engine.optimizer.loss_scale]
    sample = torch.tensor(tokens)[None]
    losses = [_step(engine, sample[:, :-1], sample[:, 1:]) for _ in range(3)]
    scales.append(engine.optimizer.loss_scale)
    engine.destroy()
    return {"counters": counters, "client": sorted(client), "losses": losses, "states": len(states), "far": max(far), "scales": scales}


def under_other_names(config: str, saved: str) -> str:
    """Returns the error for names that do not match."""
    torch.manual_seed(1)
    inner = transformers.AutoModel.from_config(transformers.AutoConfig.from_pretrained(config))
    engine = deepspeed.initialize(model=inner, optimizer=torch.optim.AdamW(inner.parameters()), config={"train_batch_size": 2})[0]
    try:
        engine.load_checkpoint(saved)
    except deepspeed.CheckpointError as error:
        return str(error)
    finally:
        engine.destroy()
    return "nothing"


def with_other_settings(saved: str) -> list[list[str]]:
    """The warnings of loads into an engine with the same settings in another layout, with others, and with another optimizer."""
    adam = {"type": "AdamW", "params": {"lr": 1e-2}}
    base: dict[str, Any] = {"train_micro_batch_size_per_gpu": 1, "gradient_clipping": 1.0, "optimizer": adam}
    others = [
        {"zero_optimization": {"stage": 2}},
        {"train_micro_batch_size_per_gpu": 2, "gradient_clipping": 0.5, "optimizer": {"type": "AdamW", "params": {"lr": 2e-2}}},
    ]
    said = []
    for i, other in enumerate([{}, *others]):
        torch.manual_seed(1)
        module = torch.nn.Linear(4, 4)
        engine = deepspeed.initialize(model=module, model_parameters=module.parameters(), config={**base, **other})[0]
        if i == 0:
            engine.backward(engine(torch.ones(1, 4)).sum())
            engine.step()
            engine.save_checkpoint(saved)
        else:
            with contextlib.redirect_stdout(io.StringIO()) as out:
                engine.load_checkpoint(saved)
            if engine.optimizer.param_groups[0]["lr"] != adam["params"]["lr"]:
                raise AssertionError("the checkpoint's learning rate is not in the groups")
            said.append([line for line in out.getvalue().splitlines() if line.startswith("warning: ")])
        engine.destroy()
    return said


def several(cases: list[list[Any]]) -> list[Any]:
    """Runs several cases with their arguments in one process."""
    transformers.logging.set_verbosity_error()
    return [globals()[case](*args) for case, *args in cases]
