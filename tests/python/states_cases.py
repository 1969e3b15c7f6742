"""Cases of states_test.py for ranks, with parameters that scripts read and change; each returns JSON."""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from typing import Any

import cleave as deepspeed
import models
import plain
import torch
from engine_cases import config, digest, in_torch, steps, worst


def changed_within_steps(folder: str) -> dict[str, str]:
    """Returns, by home of the optimizer state, the digest of weights after a script changes values and moments between backward and
    step."""
    out = {}
    for home in ("none", "cpu", "nvme"):
        zero = {"stage": 3, "offload_optimizer": {"device": home, "nvme_path": folder}}
        made = config(3, zero_optimization=zero, gradient_accumulation_steps=1, bf16={"enabled": True})
        engine = deepspeed.initialize(model=models.seeded(models.Mlp), config=made)[0]
        for step in range(3):
            engine.backward(models.loss(engine, models.batch(step, 0, engine.global_rank)))
            for parameter in engine.module.parameters():
                value = torch.linspace(-1, 1 + step, parameter.ds_numel).view(parameter.ds_shape)
                deepspeed.utils.safe_set_full_fp32_param(parameter, value)
                deepspeed.utils.safe_set_full_optimizer_state(parameter, value * 1e-3, "exp_avg")
            engine.step()
        out[home] = digest(engine)
        engine.destroy()
    return out


def handed_over() -> list[int]:
    """Returns the KiB of the module's parameters, and the peak growth of this process until the engine had their values."""
    module = torch.nn.Sequential(*(torch.nn.Linear(2048, 2048, bias=False) for _ in range(8)))
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak

    def of_process(name: str) -> int:
        return int(next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name)).split()[1])

    before = of_process("VmRSS")
    deepspeed.initialize(model=module, config=config(0, bf16={"enabled": True}))
    return [8 * 2048 * 2048 * 4 // 1024, of_process("VmHWM") - before]


def weights_for_a_generator(stage: int) -> dict[str, Any]:
    """Returns facts on `whole_weights` between the steps of a model with tied weights."""
    engine = deepspeed.initialize(model=models.seeded(models.Gpt), config=config(stage, bf16={"enabled": True}))[0]
    steps(engine, 1)
    want = {name: engine.parameters_of(engine.name_of(p)) for name, p in engine.module.named_parameters(remove_duplicate=False)}
    taken = {name: value.clone() for name, value in engine.whole_weights()}
    for _ in zip(range(2), engine.whole_weights(), strict=False):  # a generator that takes only some
        pass
    steps(engine, 1, 1)
    memory = engine.memory()
    same = all(torch.equal(taken[name].float(), value.bfloat16().float().view(taken[name].shape)) for name, value in want.items())
    found = {"names": taken.keys() == want.keys(), "same": same, "planned": memory["peak"] == memory["planned"]}
    return found | {"types": sorted({str(value.dtype) for value in taken.values()})}


def gathered(stage: int) -> dict[str, Any]:
    """Returns a parameter outside of calls, within GatheredParameters, and after a change by one rank."""
    engine = deepspeed.initialize(model=models.seeded(models.Gpt), config=config(stage, bf16={"enabled": True}))[0]
    steps(engine, 1)
    weight = engine.module.head.weight
    taken = {}
    for name, parameter in engine.module.named_parameters():
        with deepspeed.zero.GatheredParameters(parameter):
            taken[name] = parameter.detach().cpu()
    lost = [name for name, value in taken.items() if not torch.equal(value, engine.parameters_of(name).bfloat16())]
    outside = bool(torch.isnan(weight).any())
    master = engine.parameters_of("embed.weight")
    with deepspeed.zero.GatheredParameters(list(engine.module.parameters()), modifier_rank=0):
        inside = torch.equal(weight.float(), master.bfloat16().float())
        if engine.global_rank == 0:
            engine.module.norm.bias.data.fill_(2.5)
    with deepspeed.zero.GatheredParameters(engine.module.norm.bias):
        changed = engine.module.norm.bias.tolist()
    kept = torch.equal(master, engine.parameters_of("embed.weight"))
    whole = engine._zero3_consolidated_16bit_state_dict()
    names = None if whole is None else sorted(whole) == sorted(engine.module.state_dict())
    seen = {"outside": outside, "shape": list(weight.shape), "inside": inside, "changed": changed, "kept": kept, "names": names}
    return {**seen, "lost": lost}


def checked() -> list[str]:
    """Returns the errors of changes without modifier_rank, before and in an engine, and the result with it."""
    made = config(3, zero_optimization={"stage": 3, "enable_sanity_checks": True})
    with deepspeed.zero.Init(config_dict_or_path=made):
        module = models.seeded(models.Mlp)
    parameter = next(module.parameters())

    def change(rank: int | None) -> None:
        with deepspeed.zero.GatheredParameters(parameter, modifier_rank=rank), torch.no_grad():
            parameter.add_(1)

    said = [plain.said_of(lambda: change(None)), plain.said_of(lambda: change(0))]
    deepspeed.initialize(model=module, config=made)
    return [*said, plain.said_of(lambda: change(None)), plain.said_of(lambda: change(0))]


def changed_in_place(stages: list[int]) -> dict[str, Any]:
    """Returns the errors of steps after changes of trained weights in place, by stage, type and change."""
    said: dict[str, Any] = {}
    halved = {name: value * 0.5 for name, value in models.seeded(models.Mlp).state_dict().items()}
    for stage, precision in itertools.product(stages, ("fp32", "bf16", "fp16")):

        def told(change: Any, stage: int = stage, precision: str = precision) -> str:
            engine = deepspeed.initialize(model=models.seeded(models.Mlp), config=config(stage, **{precision: {"enabled": True}}))[0]
            steps(engine, 1)
            with torch.no_grad():
                change(engine)
            said = plain.said_of(lambda: steps(engine, 1, 1))
            engine.destroy()
            return said

        def restored(engine: Any) -> None:
            saved = [p.clone() for p in engine.module.parameters()]
            for p in engine.module.parameters():
                p.zero_()
            for p, value in zip(engine.module.parameters(), saved, strict=True):
                p.copy_(value)

        def gathered(engine: Any) -> None:
            with deepspeed.zero.GatheredParameters(list(engine.module.parameters()), modifier_rank=0):
                for p in engine.module.parameters():
                    p.mul_(0.5)

        changes = {
            "added": lambda engine: [p.add_(1) for p in engine.module.parameters()],
            "loaded": lambda engine: engine.module.load_state_dict(halved),
            "not a number": lambda engine: [p.fill_(float("nan")) for p in engine.module.parameters()],
            "restored": restored,
            "gathered": gathered,
            "by the engine": lambda engine: engine.load_module_state_dict(halved),
        }
        said |= {f"{stage} {precision} {name}": told(change) for name, change in changes.items()}
    return said


def built_sharded() -> dict[str, Any]:
    """Builds a model under zero.Init; returns the memory of a rank, a change before there is an engine, and the difference of losses from
    torch's."""
    with deepspeed.zero.Init(config_dict_or_path=config(3)):
        model = models.seeded(models.Gpt)
    statuses = [{p.ds_status.name for p in model.parameters()}]
    shards = [p.ds_shard for p in dict.fromkeys(model.parameters())]
    held = sum(shard._part.numel() for shard in shards)
    shown = torch.cat([p.detach().flatten() for p in model.parameters()])
    whole = models.seeded(models.Gpt)
    with deepspeed.zero.GatheredParameters(model, modifier_rank=1), torch.no_grad():
        same = all(torch.equal(p, q) for p, q in zip(model.parameters(), whole.parameters(), strict=True))
        statuses.append({p.ds_status.name for p in model.parameters()})
        if os.environ["RANK"] == "1":
            model.norm.bias.fill_(0.25)
    with torch.no_grad():
        whole.norm.bias.fill_(0.25)
    engine = deepspeed.initialize(model=model, config=config(3))[0]
    want = in_torch(whole, torch.optim.AdamW(whole.parameters(), lr=1e-2, weight_decay=0.1), engine.world_size, 3)
    statuses.append({p.ds_status.name for p in model.parameters()})
    return {
        "statuses": [sorted(names) for names in statuses],
        "held": held,
        "numel": sum(p.numel() for p in whole.parameters()),
        "nothing": bool(shown.isnan().all()),
        "same": same,
        "far": worst(steps(engine, 3, 0), want),
    }


def states(stage: int) -> dict[str, Any]:
    """Returns the results of utils' reads and writes of a parameter."""
    from cleave.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state, safe_set_full_fp32_param

    engine = deepspeed.initialize(model=models.seeded(models.Mlp), config=config(stage))[0]
    steps(engine, 2, 0)
    bias = engine.module.head.bias
    first = safe_get_full_fp32_param(bias)
    moment = safe_get_full_optimizer_state(bias, "exp_avg")
    safe_set_full_fp32_param(bias, torch.full((models.CLASSES,), 0.5))
    with deepspeed.zero.GatheredParameters(bias):
        shown = bias.tolist()
    return {"first": first.tolist(), "moment": moment.tolist(), "shown": shown}


def gradients(stage: int) -> dict[str, Any]:
    """Returns the difference of whole gradients from torch's, with updates that wait for the norm and with early updates."""
    out: dict[str, Any] = {}
    schedule = {"type": "WarmupLR", "params": {"warmup_max_lr": 1e-2, "warmup_num_steps": 9}}
    for name, more in (
        ("clipped", {}),
        ("ahead", {"gradient_clipping": 0.0, "scheduler": schedule}),
        ("exact", {"cleave": {"exact_sums": True}}),
    ):
        model, other = models.seeded(models.Odd), models.seeded(models.Odd)
        engine = deepspeed.initialize(model=model, config=config(stage, **more))[0]
        outside = deepspeed.utils.safe_get_full_grad(model.head.weight)
        for micro in range(2):
            engine.backward(models.loss(engine, models.batch(0, micro, engine.global_rank)))
            if micro == 0:
                engine.step()
            for rank in range(engine.world_size):
                (models.loss(other, models.batch(0, micro, rank)) / (2 * engine.world_size)).backward()
        far = []
        for parameter, want in zip(model.parameters(), other.parameters(), strict=True):
            got = deepspeed.utils.safe_get_full_grad(parameter)
            assert (got is None) == (not want.requires_grad)
            if got is not None:
                far.append((got - (want.grad if want.grad is not None else 0)).abs().max().item())
        engine.step()
        norm = torch.nn.utils.get_total_norm([p.grad for p in other.parameters() if p.grad is not None]).item()
        out[name] = max(*far, abs(engine.get_global_grad_norm() - norm)) if outside is None else 1.0
        engine.destroy()
    return out


def changed_gradients(stages: list[int]) -> dict[str, float]:
    """Returns, by stage and form of gradients, the difference from torch of norm and weights after a script changes gradients before the
    update."""
    out = {}
    for stage in stages:
        forms: dict[str, Any] = {"clipped": {}, "exact": {"cleave": {"exact_sums": True}}, "fp16": {"fp16": {"enabled": True}}}
        if stage:
            forms["offloaded"] = {"zero_optimization": {"stage": stage, "offload_optimizer": {"device": "cpu"}}}
        for form, more in forms.items():
            model, other = models.seeded(models.Odd), models.seeded(models.Odd)
            engine = deepspeed.initialize(model=model, config=config(stage, **more))[0]
            trained = [p for p in other.parameters() if p.requires_grad]
            optimizer = torch.optim.AdamW(trained, lr=1e-2, weight_decay=0.1)
            far = []
            for step in range(2):
                for micro in range(2):
                    engine.backward(models.loss(engine, models.batch(step, micro, engine.global_rank)))
                    if micro == 0:
                        engine.step()
                if form == "fp16":  # a value that fits 16 bits: norm in closed form
                    for mine in (p for p in model.parameters() if p.requires_grad):
                        deepspeed.utils.safe_set_full_grad(mine, torch.full(mine.ds_shape, 0.25))
                    far.append((deepspeed.utils.safe_get_full_grad(model.head.weight) - 0.25).abs().max().item())
                    engine.step()
                    far.append(engine.get_global_grad_norm() / (0.25 * sum(p.numel() for p in trained) ** 0.5) - 1)
                    continue
                for p in trained:
                    p.grad = torch.zeros_like(p)
                for micro, rank in itertools.product(range(2), range(engine.world_size)):
                    (models.loss(other, models.batch(step, micro, rank)) / (2 * engine.world_size)).backward()
                for mine, p in zip(model.parameters(), other.parameters(), strict=True):
                    if p.requires_grad:
                        p.grad = 0.5 * p.grad + 0.01
                        deepspeed.utils.safe_set_full_grad(mine, 0.5 * deepspeed.utils.safe_get_full_grad(mine) + 0.01)
                        far.append((deepspeed.utils.safe_get_full_grad(mine) - p.grad).abs().max().item())
                norm = torch.nn.utils.clip_grad_norm_(trained, 0.5).item()
                optimizer.step()
                engine.step()
                far.append(engine.get_global_grad_norm() - norm)
            if form != "fp16":
                far.append(plain.apart(engine, other))
            out[f"{form} at stage {stage}"] = max(map(abs, far))
            engine.destroy()
    return out


def _of_all(part: torch.Tensor) -> torch.Tensor:
    """Joins the parts of all ranks."""
    parts = [torch.empty_like(part) for _ in range(torch.distributed.get_world_size())]
    torch.distributed.all_gather(parts, part)
    return torch.cat(parts)


def parts() -> dict[str, Any]:
    """At stage 3: returns the difference of the ranks' parts from whole states, also after writes, and the errors of unsupported uses."""
    utils = deepspeed.utils
    engine = deepspeed.initialize(model=models.seeded(models.Odd), config=config(3, gradient_clipping=0.0))[0]
    steps(engine, 1)
    for micro in range(2):
        engine.backward(models.loss(engine, models.batch(1, micro, engine.global_rank)))
        if micro == 0:
            engine.step()
    kinds: list[Any] = [
        (utils.safe_get_local_fp32_param, utils.safe_get_full_fp32_param, utils.safe_set_local_fp32_param, {}),
        (utils.safe_get_local_grad, utils.safe_get_full_grad, utils.safe_set_local_grad, {}),
        (
            utils.safe_get_local_optimizer_state,
            utils.safe_get_full_optimizer_state,
            utils.safe_set_local_optimizer_state,
            {"optim_state_key": "exp_avg"},
        ),
    ]
    trained = [p for p in engine.module.parameters() if p.requires_grad]
    out: dict[str, Any] = {
        "sizes": [],
        "read": [],
        "written": [],
        "frozen": [read(engine.module.frozen.bias, **key) for kind in kinds for read, key in ((kind[0], kind[3]), (kind[1], kind[3]))],
    }
    for parameter in trained:
        for local, full, write, key in kinds:
            part, whole = local(parameter, **key), full(parameter, **key)
            out["sizes"].append(part.numel() * 2 - whole.numel())
            wanted = torch.cat([whole.flatten(), torch.zeros(part.numel() * 2 - whole.numel())])
            out["read"].append((_of_all(part) - wanted).abs().max().item())
            write(parameter, part * 2 + engine.global_rank, **key)
            wanted = wanted.view(2, -1) * 2 + torch.tensor([[0.0], [1.0]])
            out["written"].append((full(parameter, **key).flatten() - wanted.flatten()[: whole.numel()]).abs().max().item())
    with deepspeed.zero.GatheredParameters(trained[0]):
        out["shown"] = (trained[0] - utils.safe_get_full_fp32_param(trained[0])).abs().max().item()
    utils.safe_update_full_grad_vectorized(engine.module.parameters(), lambda gradient, parameter: torch.full_like(gradient, 0.5))
    engine.step()
    out["norm"] = engine.get_global_grad_norm() / (0.5 * sum(p.ds_numel for p in trained) ** 0.5) - 1
    other = deepspeed.initialize(model=models.seeded(models.Mlp), config=config(2))[0]
    out["stage"] = plain.said_of(lambda: utils.safe_get_local_fp32_param(other.module.head.bias))
    out["size"] = plain.said_of(lambda: utils.safe_set_local_fp32_param(trained[0], torch.zeros(1)))
    out["no engine"] = plain.said_of(lambda: utils.safe_get_local_grad(torch.nn.Parameter(torch.zeros(1))))
    return out


def changed_moments(stages: list[int]) -> dict[str, float]:
    """Returns the difference of weights from torch's after a script sets the first moment between two steps."""
    out = {}
    for stage in stages:
        model, other = models.seeded(models.Mlp), models.seeded(models.Mlp)
        engine = deepspeed.initialize(model=model, config=config(stage))[0]
        optimizer = torch.optim.AdamW(other.parameters(), lr=1e-2, weight_decay=0.1)
        for step in range(2):
            steps(engine, 1, step)

            def batch(_: int, micro: int, rank: int, step: int = step) -> plain.Batch:
                return models.batch(step, micro, rank)

            plain.train(other, optimizer, batch, models.loss, steps=1, micros=2, ranks=engine.world_size, clipping=0.5)
            for mine, its in zip(model.parameters(), other.parameters(), strict=True):
                moment = torch.linspace(-0.01, 0.01, its.numel()).view(its.shape)
                deepspeed.utils.safe_set_full_optimizer_state(mine, moment, "exp_avg")
                optimizer.state[its]["exp_avg"].copy_(moment)
                got = deepspeed.utils.safe_get_full_optimizer_state(mine, optim_state_key="exp_avg")
                assert torch.equal(got, moment), (stage, step)
        out[f"stage {stage}"] = plain.apart(engine, other)
        engine.destroy()
    return out


HOST = {"device": "cpu"}


def offloaded(stage: int, folder: str) -> dict[str, Any]:
    """Moves states to host memory between steps. Returns the bytes that leave the device, and whether values and weights are those of an
    engine that moves nothing."""
    kinds = deepspeed.runtime.zero.offload_config.OffloadStateTypeEnum
    made = config(stage, bf16={"enabled": True})
    whole = deepspeed.initialize(model=models.seeded(models.Mlp), config=made)[0]
    engine = deepspeed.initialize(model=models.seeded(models.Mlp), config=made)[0]

    def on(kind: str) -> list[int]:
        live = engine.memory()["live"]
        return [sum(bytes for place, bytes in live.get(kind, {}).items() if place in ("master", "optimizer_state"))]

    def values(of: Any) -> list[Any]:
        return [of.parameters_of(name, kind).tolist() for name in of._shapes for kind in ("master", "exp_avg", "exp_avg_sq")]

    out: dict[str, Any] = {"bytes": [], "equal": [], "masters": engine.memory()["live"]["device"]["master"]}
    for step, include in enumerate((None, [kinds.optim_states], {kinds.hp_params}, [kinds.lp_grads, kinds.contiguous_grad_buffer])):
        for of in (whole, engine):
            steps(of, 1, step)
        before = on("device")
        engine.offload_states(include=include, pin_memory=step % 2 == 0, non_blocking=True)
        out["bytes"].append([before[0] - on("device")[0], on("pinned host")[0] + on("host")[0]])
        out["equal"].append(values(engine) == values(whole))
        if step == 1:
            engine.reload_states()
        if step == 2:
            engine.save_checkpoint(folder)
            engine.load_checkpoint(folder)
    for of in (whole, engine):
        steps(of, 1, 4)  # moves the state back
    out["equal"] += [values(engine) == values(whole), digest(engine) == digest(whole), on("device") == before]
    engine.backward(models.loss(engine, models.batch(0, 0, 0)))
    out["inside"] = plain.said_of(engine.offload_states)
    out["unknown"] = plain.said_of(lambda: engine.offload_states(include=["lp_parameters"]))
    out["parameters"] = sum(p.ds_numel for p in engine.module.parameters())
    moved = deepspeed.initialize(model=models.seeded(models.Mlp), config=config(3, zero_optimization={"stage": 3, "offload_param": HOST}))
    out["parameters in host memory"] = plain.said_of(moved[0].offload_states)
    return out
