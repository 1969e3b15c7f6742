"""Cases of surface_test.py for ranks: features of an engine other than steps; each returns JSON."""

from __future__ import annotations

import contextlib
import functools
import io
import itertools
import json
import os
from pathlib import Path
from typing import Any

import cleave as deepspeed
import models
import plain
import torch
from engine_cases import autocast, config, in_torch, steps, worst
from states_cases import gradients


def refusals(mistakes: list[str], folder: str) -> dict[str, str]:
    """Returns the error of each mistake."""
    out = {}
    for which in mistakes:
        out[which] = plain.said_of(functools.partial(_mistake, which, folder))
    return out


def _mistake(which: str, folder: str) -> None:
    stage = 3 if which.startswith("stage 3: ") else 1
    what = which.removeprefix("stage 3: ")
    module = models.seeded(models.Mlp)
    if what == "unknown key":
        deepspeed.initialize(model=module, config={**config(0), "gradient_cliping": 1})
    if what == "stages":
        deepspeed.initialize(model=module, config={**config(0), "pipeline": {"stages": 2}})
    if what == "no section":
        deepspeed.initialize(model=module, config={**config(0), "cleave": 5})
    if what == "no file":
        deepspeed.initialize(model=module, config="nowhere.json")
    if what == "binary file":
        deepspeed.initialize(model=module, config=_written(folder, b"\xff\x00"))
    if what == "folder":
        deepspeed.initialize(model=module, config=folder)
    if what == "no base64":
        deepspeed.initialize(model=module, config="A" * 77)
    if what == "not finite":
        deepspeed.initialize(model=module, config=config(0, optimizer={"type": "Adam", "params": {"betas": [0.9, float("nan")]}}))
    if what == "no JSON":
        deepspeed.initialize(model=module, config=config(0, bf16={"enabled": torch.float32}))
    if what == "dotted":
        deepspeed.initialize(model=module, config={"optimizer": 3, "optimizer.type": "Adam"})
    if what == "scheduler":
        deepspeed.initialize(model=module, config=config(0, scheduler={"type": [1]}))
    if what == "value":
        deepspeed.initialize(model=module, config=config(0, optimizer={"type": "NAdam", "params": {"lr": -1}}))
    if what == "deep":
        deepspeed.initialize(model=module, config=config(0, cleave=functools.reduce(lambda below, _: {"a": [below]}, range(3000), {})))
    if what == "deep file":
        deepspeed.initialize(model=module, config=_written(folder, b'{"cleave": ' + b"[" * 100_000))
    if what in ("rate", "betas"):
        engine, optimizer, *_ = deepspeed.initialize(model=module, config=config(stage))
        optimizer.param_groups[0]["lr" if what == "rate" else "betas"] = "x"
        steps(engine, 1)
    if what == "leaf":
        deepspeed.initialize(model=module, config=config(0, zero_optimization={"leaf_module": {"classes": 5}}))
    if what == "twice":
        args = type("Args", (), {"deepspeed_config": "a.json"})
        deepspeed.initialize(args=args, model=module, config=config(0))
    if what == "groups":
        groups = [{"params": [p], "momentum": 0.1 * k} for k, p in enumerate(module.parameters())]
        deepspeed.initialize(model=module, optimizer=torch.optim.SGD(groups, lr=1), config=config(1))
    if what == "arguments":
        deepspeed.initialize(model=module, config=config(0, optimizer={"type": "NAdam", "params": {"speed": 1}}))
    if what == "unused":
        zero = {"stage": stage, "ignore_unused_parameters": False}
        engine = deepspeed.initialize(model=models.seeded(models.Odd), config=config(stage, zero_optimization=zero))[0]
        steps(engine, 1)
    more = {"managed_gradient_accumulation": False} if what == "boundary" else {}
    engine = deepspeed.initialize(model=module, config=config(stage, **more))[0]
    if what == "boundary":
        engine.set_gradient_accumulation_boundary(True)
    loss = models.loss(engine, models.batch(0, 0, engine.global_rank))
    if what == "no sync":
        with engine.no_sync():
            with engine.no_sync():
                engine.backward(loss)
            engine.step()
    if what == "scale":
        engine.scale(engine(models.batch(0, 0, 0)[0]))
    if what == "backward":
        engine.backward([loss])
    if what == "text":
        engine.backward("loss")
    if what == "no gradient":
        engine.scale(loss.detach())
    if what == "step alone":
        engine.step()
    if what == "past the engine":
        models.loss(module, models.batch(0, 0, 0)).backward()
    if what == "backward twice":
        engine.backward(loss)
        engine.backward(loss)
    if what == "in place":
        engine = deepspeed.initialize(model=models.seeded(models.InPlace), config=config(stage))[0]
        engine.backward(models.loss(engine, models.batch(0, 0, 0)))
    if what == "other model":
        engine.backward(loss), engine.step()
        engine.backward(models.loss(engine, models.batch(0, 1, 0))), engine.step()
        engine.save_checkpoint(folder)
        other = deepspeed.initialize(model=models.seeded(models.Gpt), config=config(stage))[0]
        other.load_checkpoint(folder)
    if what == "no folder":
        engine.save_checkpoint("")
    if what == "save within":
        engine.backward(loss), engine.step()
        engine.backward(models.loss(engine, models.batch(0, 1, 0)))
        engine.save_checkpoint(folder)
    if what == "load within":
        engine.backward(loss), engine.step()
        engine.load_checkpoint(folder)


def _written(folder: str, data: bytes) -> str:
    path = os.path.join(folder, "written.json")
    with open(path, "wb") as file:
        file.write(data)
    return path


def sections_of_null() -> list[Any]:
    """Returns the optimizer of an engine with null sections, and that of its plan."""
    made = {**config(0), "optimizer": None, "scheduler": None}
    planned = deepspeed.plan(models.seeded(models.Mlp), made)
    return [deepspeed.initialize(model=models.seeded(models.Mlp), config=made)[1], len(planned.ranks)]


def destroyed() -> str:
    """Returns the error of a call after destroy()."""
    engine = deepspeed.initialize(model=models.seeded(models.Mlp), config=config(1))[0]
    engine.destroy()
    return plain.said_of(lambda: engine.backward(models.loss(engine, models.batch(0, 0, 0))))


def saves_on_rank_0(before: int, timeout: int) -> None:
    """Rank 0 saves alone after some steps."""
    engine = deepspeed.initialize(model=models.seeded(models.Mlp), config=config(2, cleave={"comm_timeout_s": timeout}))[0]
    steps(engine, before)
    if engine.global_rank == 0:
        engine.save_checkpoint("unused")
    steps(engine, 1)


def raises(rank: int, where: str) -> None:
    """Raises an error in one rank's loss."""
    engine = deepspeed.initialize(model=models.seeded(models.Mlp), config=config(3))[0]
    for step in range(3):
        loss = models.loss(engine, models.batch(step, 0, engine.global_rank))
        if step == 1 and engine.global_rank == rank:
            if where == "exit":
                os._exit(9)
            raise ValueError("the loss of this rank is bad")
        engine.backward(loss)
        engine.step()


def loader(size: int, folder: str) -> dict[str, list[int]]:
    """Returns the samples that each rank gets from a Dataset, through forked workers, and after a checkpoint."""
    data = [(torch.full((8,), float(i)), i % models.CLASSES) for i in range(size)]
    engine, _, dataloader, _ = deepspeed.initialize(model=models.seeded(models.Mlp), config=config(2), training_data=data)
    dataloader.sampler.set_epoch(0)  # scripts call this for torch's sampler
    assert dataloader.batch_size == engine.train_micro_batch_size_per_gpu()
    seen = [int(v) for x, _ in dataloader for v in x[:, 0]]
    from torch.utils.data import DataLoader

    forked = [int(v) for x, _ in DataLoader(data, batch_size=4, num_workers=2) for v in x[:, 0]]
    assert forked == list(range(size))
    steps(engine, 1)
    first = list(itertools.islice(iter(dataloader), 3))
    out = {"seen": seen, "third": [int(v) for v in first[2][0][:, 0]]}
    for given, tag in ((2, "a"), (3, "b")):  # a step, and a micro-batch more, which the checkpoint does not contain
        batches = iter(dataloader)
        for batch in itertools.islice(batches, given):
            engine.backward(models.loss(engine, batch))
            engine.step()
        engine.save_checkpoint(folder, tag)
        again = deepspeed.initialize(model=models.seeded(models.Mlp), config=config(2), training_data=data)[0]
        again.load_checkpoint(folder, tag)
        out[tag] = [int(v) for x, _ in again.training_dataloader for v in x[:, 0]]
        out[tag + " after"] = [int(v) for x, _ in again.training_dataloader for v in x[:, 0]]
        again.destroy()
    return out


def folders(folder: str) -> None:
    """Saves into a folder with another name on each rank."""
    engine = deepspeed.initialize(model=models.seeded(models.Mlp), config=config(2))[0]
    steps(engine, 1)
    engine.save_checkpoint(os.path.join(folder, "run", f"of rank {engine.global_rank}"))
    path, _ = engine.load_checkpoint(os.path.join(folder, "run", "of rank 0"))
    print("loaded", os.path.relpath(path, folder), os.listdir(os.path.join(folder, "run")), flush=True)


def surface(stages: list[int]) -> dict[str, dict[str, Any]]:
    """Returns results of an engine outside of steps, each compared with torch alone or as a number that must be true."""
    out = {}
    for stage in stages:
        model, other = models.seeded(models.Gpt, 5), models.seeded(models.Gpt)
        engine = deepspeed.initialize(model=model, config=config(stage))[0]
        engine.load_module_state_dict({"module": other.state_dict()})
        loaded = all(torch.equal(engine.parameters_of(name), p.detach()) for name, p in other.named_parameters())
        engine.set_train_batch_size(3 * 4 * engine.world_size)
        assert engine.gradient_accumulation_steps() == 3 and engine.get_type() == [0.0]
        got = []
        for step in range(2):
            for micro in range(3):
                engine.scale(models.loss(engine, models.batch(step, micro, engine.global_rank))).backward()
                engine.step()
            got.append((engine.last_result.loss, engine.get_global_grad_norm()))
        optimizer = torch.optim.AdamW(other.parameters(), lr=1e-2, weight_decay=0.1)
        want = in_torch(other, optimizer, engine.world_size, 2, micros=3)
        assert engine.global_samples == 2 * 3 * 4 * engine.world_size and not engine.is_compiled
        engine.compile(backend="eager")
        seen: dict[str, Any] = {"loaded": loaded, "far": worst(got, want), "compiled": engine.is_compiled}
        for name, call in {
            "missing": lambda e: e.load_module_state_dict({"embed.weight": torch.zeros(1)}),
            "shape": lambda e: e.load_module_state_dict({"embed.weight": torch.zeros(1)}, strict=False),
            "batch": lambda e: e.set_train_batch_size(5),
            "offload": lambda e: e.offload_states(device="nvme"),
            "early": _early,
            "ahead": lambda e: _ahead(e.zero_optimization_stage()),
            "within": _within,
        }.items():
            try:
                call(engine)
            except deepspeed.CleaveError as error:
                seen[name] = f"{type(error).__name__}: {error}"
        engine.destroy()
        out[str(stage)] = seen | autocast(stage) | {"gradients": gradients(stage)}
    return out


def _early(engine: Any) -> None:
    engine.backward(models.loss(engine, models.batch(0, 0, engine.global_rank)))
    deepspeed.utils.safe_get_full_grad(engine.module.head.weight)


def _ahead(stage: int) -> None:
    schedule = {"type": "WarmupLR", "params": {"warmup_max_lr": 1e-2, "warmup_num_steps": 9}}
    made = config(stage, gradient_clipping=0.0, scheduler=schedule, gradient_accumulation_steps=1, cleave={"visible_gradients": "off"})
    engine = deepspeed.initialize(model=models.seeded(models.Mlp), config=made)[0]
    engine.backward(models.loss(engine, models.batch(0, 0, engine.global_rank)))
    deepspeed.utils.safe_set_full_grad(engine.module.head.bias, torch.zeros(models.CLASSES))


def _within(engine: Any) -> None:
    with engine.no_sync():
        engine.backward(models.loss(engine, models.batch(0, 0, engine.global_rank)))
        engine.step()


def buffers() -> list[list[str]]:
    """Returns the buffer types of a 16-bit module, by buffer_dtype."""
    out = []
    for given in (None, "bf16"):
        module = torch.nn.BatchNorm1d(8)
        made = config(1, bf16={"enabled": True}, data_types={"buffer_dtype": given})
        engine = deepspeed.initialize(model=module, config=made)[0]
        out.append([str(b.dtype) for b in engine.module.buffers()])
        engine.destroy()
    return out


def other_names(folder: str) -> list[Any]:
    """Returns the type, the loss and two answers of an engine whose ds_config uses other names of keys, as a dictionary and as a file."""
    out = []
    written = config(3, bfloat16={"enabled": True})
    written["zero_optimization"]["gather_16bit_weights_on_model_save"] = True
    path = os.path.join(folder, "other_names.json")
    with open(path, "w", encoding="utf-8") as file:
        json.dump(written, file)
    for given in (written, path):
        engine = deepspeed.initialize(model=models.seeded(models.Mlp), config=given)[0]
        loss = models.loss(engine, models.batch(0, 0, engine.global_rank))
        parameter = next(engine.module.parameters())
        out.append([str(parameter.dtype), loss.item(), engine.bfloat16_enabled(), engine.zero_gather_16bit_weights_on_model_save()])
        engine.destroy()
    return out


def nothing_to_load(folder: str) -> list[str]:
    """Returns the warnings of loads from a folder without checkpoints, a file and a missing folder."""
    engine = deepspeed.initialize(model=models.seeded(models.Mlp), config=config(1))[0]
    Path(folder, "file").write_text("text")
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        for path in (folder, f"{folder}/file", f"{folder}/missing"):
            assert engine.load_checkpoint(path) == (None, None)
    return [line.removeprefix(f"warning: {folder}") for line in said.getvalue().splitlines()]


def steps_unequally() -> None:
    """One rank updates earlier than the other."""
    engine = deepspeed.initialize(model=models.seeded(models.Mlp), config=config(1))[0]
    engine.set_gradient_accumulation_boundary(engine.global_rank == 1)
    engine.backward(models.loss(engine, models.batch(0, 0, engine.global_rank)))
    engine.step()
    engine.save_checkpoint("unused")


def refused() -> None:
    """Raises an uncaught error."""
    deepspeed.initialize(model=models.seeded(models.Mlp), config={"train_batch_size": 7, "gradient_cliping": 1})


def collate(samples: list[Any]) -> plain.Batch:
    """Makes a batch of samples with other values. Not a local function, which Python 3.14 cannot send to a worker."""
    return torch.stack([x + 100 for x, _ in samples]), torch.tensor([y for _, y in samples])


def arguments(folder: str) -> dict[str, Any]:
    """Returns the effects of arguments of initialize and of the engine's methods."""
    out: dict[str, Any] = {}
    data = [(torch.full((8,), float(i)), i % models.CLASSES) for i in range(10)]

    engine, _, loader, _ = deepspeed.initialize(
        model=models.seeded(models.Mlp), config_params=config(1), training_data=data, collate_fn=collate
    )
    out["config_params"] = [engine.train_batch_size(), engine.zero_optimization_stage()]
    out["collate_fn"] = sorted({int(v) for x, _ in loader for v in x[:, 0]})

    def firsts(**options: Any) -> list[list[int]]:
        return [x[:, 0].int().tolist() for x, _ in engine.deepspeed_io(data, **options)]

    out["train"] = sorted(v for batch in firsts() for v in batch)
    out["eval"] = firsts(batch_size=6, route="eval", pin_memory=True)
    out["sampled"] = firsts(batch_size=2, data_sampler=[7, 1, 3], num_local_io_workers=1, collate_fn=collate)
    for name, value in {"mpu": object(), "mesh_param": (2, 1), "custom_load_fn": print}.items():
        given: Any = {name: value}
        start = functools.partial(deepspeed.initialize, model=models.seeded(models.Mlp), config=config(1), **given)
        out[name] = plain.said_of(start if name != "custom_load_fn" else lambda: engine.load_checkpoint(folder, custom_load_fn=print))
    out["of a module"] = plain.said_of(lambda: engine.load_module_state_dict({}, custom_load_fn=print))
    loose = config(2, optimizer={"type": "RMSprop", "params": {"lr": 1e-3}}, zero_allow_untested_optimizer=1)
    out["loose"] = type(deepspeed.initialize(model=models.seeded(models.Mlp), config=loose)[1].optimizer).__name__
    return out


def saved_weights(folder: str, stages: list[int]) -> dict[str, Any]:
    """Returns, for files of 16-bit weights, their names and if they have the engine's values, also without frozen parameters."""
    out: dict[str, Any] = {}
    for stage in stages:
        engine = deepspeed.initialize(model=models.seeded(models.Odd), config=config(stage, bf16={"enabled": True}))[0]
        steps(engine, 1)
        whole = {name: engine.parameters_of(name).bfloat16() for name, _ in engine.module.named_parameters()}
        to = os.path.join(folder, str(stage))
        engine.save_16bit_model(to, exclude_frozen_parameters=True)
        engine.save_fp16_model(os.path.join(to, "deeper"), "all.bin")
        trained, every = torch.load(os.path.join(to, "pytorch_model.bin")), torch.load(os.path.join(to, "deeper", "all.bin"))
        same = all(torch.equal(value, whole[name]) for state in (trained, every) for name, value in state.items())
        out[str(stage)] = [same, sorted(every) == sorted(whole), sorted(every.keys() - trained.keys())]
        engine.destroy()
    return out


def usual_values() -> dict[str, Any]:
    """Returns, for ds_config optimizers with default values, the values of their groups, and the difference of weights from the torch
    optimizer."""
    out: dict[str, Any] = {}
    kinds: dict[str, tuple[Any, dict[str, Any], dict[str, Any]]] = {
        "Adam": (torch.optim.Adam, {}, {}),
        "AdamW": (torch.optim.AdamW, {"eps": 1e-6}, {"eps": 1e-6, "weight_decay": 0.0}),
        "adamw": (torch.optim.AdamW, {"torch_adam": True}, {}),
        "Adagrad": (torch.optim.Adagrad, {}, {}),
        "SGD": (torch.optim.SGD, {"momentum": 0.5}, {"momentum": 0.5}),
    }
    for name, (kind, given, same) in kinds.items():
        model, other = models.seeded(models.Mlp), models.seeded(models.Mlp)
        engine, optimizer, *_ = deepspeed.initialize(model=model, config=config(1, optimizer={"type": name, "params": given}))
        steps(engine, 2)
        plain.train(other, kind(other.parameters(), **same), models.batch, models.loss, steps=2, micros=2, ranks=1, clipping=0.5)
        group = {
            key: value for key, value in optimizer.param_groups[0].items() if key in ("lr", "betas", "eps", "weight_decay", "momentum")
        }
        out[name] = {"group": group, "far": plain.apart(engine, other), "momentum": engine.get_mom()}
        engine.destroy()
    lion = {"type": "Lion", "params": {"betas": [0.8, 0.9]}}
    out["Lion"] = deepspeed.initialize(model=models.seeded(models.Mlp), config=config(1, optimizer=lion))[0].get_mom()
    return out


def ends_early(stages: list[int]) -> dict[str, float]:
    """Returns, by stage, the difference of weights from torch's if a script ends a step after other than three micro-batches.

    The script sets a boundary, or calls step().
    """
    out = {}
    for stage, sets in itertools.product(stages, (True, False)):
        model, other = models.seeded(models.Mlp), models.seeded(models.Mlp)
        made = config(stage, gradient_accumulation_steps=3, managed_gradient_accumulation=sets)
        engine = deepspeed.initialize(model=model, config=made)[0]
        optimizer = torch.optim.AdamW(other.parameters(), lr=1e-2, weight_decay=0.1)
        for step, micros in enumerate((3, 1, 3 if sets else 5)):
            for micro in range(micros):
                if sets:
                    engine.set_gradient_accumulation_boundary(micro + 1 == micros)
                engine.backward(models.loss(engine, models.batch(step, micro, engine.global_rank)))
                if sets or micro + 1 == micros:
                    engine.step()
                    assert engine.was_step_applied() == (micro + 1 == micros)
                for rank in range(engine.world_size):
                    (models.loss(other, models.batch(step, micro, rank)) / (3 * engine.world_size)).backward()
            torch.nn.utils.clip_grad_norm_(other.parameters(), 0.5)
            optimizer.step()
            optimizer.zero_grad()
        assert engine.managed_gradient_accumulation() == sets
        assert engine.global_steps == 3 and engine.global_samples == 4 * engine.world_size * 9
        out[f"stage {stage}, {sets}"] = plain.apart(engine, other)
        engine.destroy()
    return out
