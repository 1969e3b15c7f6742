"""Cases of native_test.py for ranks: transformers models that the engine computes, compared with torch."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import cleave as deepspeed
import torch
import transformers

VOCAB, LENGTH, MICROS, STEPS = 96, 16, 2, 4


def gpt2(dropout: float = 0.0) -> torch.nn.Module:
    drops = {"resid_pdrop": dropout, "embd_pdrop": dropout, "attn_pdrop": dropout}
    config = transformers.GPT2Config(vocab_size=VOCAB, n_positions=24, n_embd=32, n_layer=2, n_head=4, **drops)
    return transformers.GPT2LMHeadModel(config)


def llama() -> torch.nn.Module:
    config = transformers.LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=24,
        tie_word_embeddings=False,
    )
    return transformers.LlamaForCausalLM(config)


FAMILIES: dict[str, Callable[[], torch.nn.Module]] = {"gpt2": gpt2, "llama": llama}


def batch(step: int, micro: int, place: int, samples: int = 2) -> dict[str, torch.Tensor]:
    """Returns samples of different lengths, padded on the right; some labels have no loss."""
    random = torch.Generator().manual_seed(1000 * step + 10 * micro + place)
    ids = torch.randint(0, VOCAB, (samples, LENGTH), generator=random)
    mask = torch.ones_like(ids)
    mask[-1, LENGTH - 3 - place :] = 0
    labels = ids.masked_fill(mask == 0, -100)
    labels[0, : 2 + micro] = -100
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


def config_of(stage: int, **others: Any) -> dict[str, Any]:
    own = {"native": True, "sequence_length": LENGTH + 2}
    given: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": 3,
        "gradient_accumulation_steps": MICROS,
        "gradient_clipping": 0.5,
        "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 20},
        "cleave": own,
    }
    return {**given, **others, "cleave": {**own, **others.get("cleave", {})}}


def groups(model: torch.nn.Module) -> list[dict[str, Any]]:
    every = list(model.parameters())
    return [
        {"params": [p for p in every if p.dim() > 1], "weight_decay": 0.1},
        {"params": [p for p in every if p.dim() == 1], "weight_decay": 0.0},
    ]


def in_torch(
    model: torch.nn.Module, places: int, optimizer: torch.optim.Optimizer, schedule: Any, precision: torch.dtype
) -> dict[str, Any]:
    """Returns the losses of all places' micro-batches, norms, and the loss before each step without a gradient."""
    seen: dict[str, Any] = {"losses": [], "norms": []}
    for step in range(STEPS):
        optimizer.zero_grad()
        of_step = []
        for place in range(places):
            for micro in range(MICROS):
                with torch.autocast("cpu", precision, enabled=precision != torch.float32):
                    loss = model(**batch(step, micro, place)).loss
                (loss / (MICROS * places)).backward()
                of_step.append(loss.item())
        seen["losses"].append(of_step)
        seen["norms"].append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)))
        optimizer.step()
        schedule.step()
    return seen


def train(engine: Any, steps: range) -> dict[str, Any]:
    seen: dict[str, Any] = {"losses": [], "norms": []}
    place = engine._data_rank
    for step in steps:
        of_step = []
        for micro in range(MICROS):
            given = batch(step, micro, place)
            loss = engine(**given).loss
            with torch.no_grad():  # another forward changes nothing
                assert math.isclose(float(engine(given["input_ids"], labels=given["labels"]).loss), loss.item(), rel_tol=1e-6)
            engine.backward(loss)
            engine.step()
            of_step.append(loss.item())
        seen["losses"].append(of_step)
        seen["norms"].append(engine.get_global_grad_norm())
    return seen


def made(family: str, **others: Any) -> tuple[Any, Any, Any]:
    torch.manual_seed(3)
    model = FAMILIES[family]()
    optimizer = torch.optim.AdamW(groups(model), lr=2e-3)
    return model, optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))


def far(got: list[Any], want: list[Any]) -> float:
    return max(abs(a - b) / max(1e-3, abs(b)) for a, b in zip(got, want, strict=True))


def flat(steps: list[list[float]]) -> list[float]:
    return [value for of_step in steps for value in of_step]


def apart(got: dict[str, torch.Tensor], want: dict[str, torch.Tensor]) -> float:
    together = torch.cat([(got[name] - value.detach()).flatten() for name, value in want.items()])
    return float(together.norm() / torch.cat([value.detach().flatten() for value in want.values()]).norm())


def against_torch(stages: list[int], others: dict[str, Any]) -> dict[str, Any]:
    """Returns the difference from torch in losses, norms, logits and weights, by family and stage. others: keys of the ds_config."""
    out: dict[str, Any] = {}
    for family in FAMILIES:
        model, optimizer, schedule = made(family)
        for stage in stages:
            mine, its, rates = made(family)
            engine, *_ = deepspeed.initialize(model=mine, optimizer=its, lr_scheduler=rates, config=config_of(stage, **others))
            if stage == stages[0]:
                want = in_torch(model, engine.dp_world_size, optimizer, schedule, torch.bfloat16 if "bf16" in others else torch.float32)
            planned = deepspeed.plan(made(family)[0], config_of(stage, optimizer={"type": "AdamW"}, **others), world_size=engine.world_size)
            seen = train(engine, range(STEPS))
            at = engine._data_rank * MICROS
            losses = [of_step[at : at + MICROS] for of_step in want["losses"]]
            found = {"losses": far(flat(seen["losses"]), flat(losses)), "norms": far(seen["norms"], want["norms"])}
            [memory] = [r["memory"]["device"] for r in planned.ranks if engine.global_rank in r["ranks"]]
            peak = engine.memory()["peak"]["device"]
            found["plan"] = float(abs(sum(peak.values()) / sum(memory.values()) - 1))
            ids = batch(9, 0, 0)["input_ids"]
            with torch.no_grad():
                reference = model(ids).logits
                found["logits"] = float((engine(ids).logits.float() - reference).abs().max() / reference.abs().max())
            whole, state = dict(model.named_parameters()), engine.module.state_dict()
            found["weights"] = apart({name: engine.parameters_of(name) for name in whole}, whole)
            found["shown"] = apart({name: state[name].float() for name in whole}, whole)
            out[f"{family} stage {stage}"] = found
            engine.destroy()
    return out


def overflows(steps: int) -> dict[str, Any]:
    """Trains in fp16 from too large a loss scale; returns it before each step and after the last, the applied steps, and those that
    changed a weight."""
    mine, its, rates = made("gpt2")
    fp16 = {"enabled": True, "initial_scale_power": 28, "hysteresis": 1}
    engine = deepspeed.initialize(model=mine, optimizer=its, lr_scheduler=rates, config=config_of(1, fp16=fp16))[0]
    name = "transformer.h.0.mlp.c_fc.weight"
    scales, applied, changed, before = [engine.optimizer.loss_scale], [], [], engine.parameters_of(name)
    for _ in range(steps):
        for micro in range(MICROS):
            engine.backward(engine(**batch(0, micro, engine._data_rank)).loss)
            engine.step()
        now = engine.parameters_of(name)
        scales.append(engine.optimizer.loss_scale), applied.append(engine.was_step_applied()), changed.append(not torch.equal(now, before))
        before = now
    return {"scales": scales, "applied": applied, "changed": changed, "skipped": engine.skipped_steps}


def divided_by_items(stages: list[int]) -> dict[str, float]:
    """Returns the difference from torch of losses that are sums divided by the labels of the whole step, as in the transformers Trainer."""
    out = {}
    for stage in stages:
        model, optimizer, schedule = made("gpt2")
        mine, its, rates = made("gpt2")
        engine = deepspeed.initialize(model=mine, optimizer=its, lr_scheduler=rates, config=config_of(stage))[0]
        places, got, want = engine.dp_world_size, [], []
        for step in range(2):
            each = [[batch(step, micro, place) for micro in range(MICROS)] for place in range(places)]
            items = sum(int((given["labels"][:, 1:] != -100).sum()) for of_place in each for given in of_place)
            optimizer.zero_grad()
            losses = [[model(**given, num_items_in_batch=items).loss for given in of_place] for of_place in each]
            sum(loss for of_place in losses for loss in of_place).backward()
            norm = float(torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5))
            optimizer.step(), schedule.step()
            for given, loss in zip(each[engine._data_rank], losses[engine._data_rank], strict=True):
                mine_loss = engine(**given, num_items_in_batch=torch.tensor(items)).loss
                got.append(mine_loss.item()), want.append(loss.item())
                engine.backward(mine_loss * places, scale_wrt_gas=False)  # a sum over ranks and micro-batches; the engine has a mean
                engine.step()
            got.append(engine.get_global_grad_norm()), want.append(norm)
        whole = dict(model.named_parameters())
        out[f"stage {stage}"] = max(far(got, want), apart({name: engine.parameters_of(name) for name in whole}, whole))
        engine.destroy()
    return out


def ends_early(stages: list[int]) -> dict[str, Any]:
    """Returns the difference from torch of steps with two micro-batches, the second step ending after its first; gradients are divided as
    at a boundary."""
    out: dict[str, Any] = {}
    for stage in stages:
        model, optimizer, schedule = made("gpt2")
        mine, its, rates = made("gpt2")
        engine = deepspeed.initialize(model=mine, optimizer=its, lr_scheduler=rates, config=config_of(stage))[0]
        places, got, want = engine.dp_world_size, [], []
        for step, micros in enumerate((2, 1, 2)):
            optimizer.zero_grad()
            losses = [[model(**batch(step, micro, place)).loss for micro in range(micros)] for place in range(places)]
            sum(loss for of_place in losses for loss in of_place).div(MICROS * places).backward()
            want.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)))
            want.append(sum(loss.item() for of_place in losses for loss in of_place) / (micros * places))
            optimizer.step(), schedule.step()
            for micro in range(micros):
                engine.set_gradient_accumulation_boundary(micro + 1 == micros)
                engine.backward(engine(**batch(step, micro, engine._data_rank)).loss)
                engine.step()
            got += [engine.get_global_grad_norm(), engine.last_result.loss]
        whole = dict(model.named_parameters())
        out[f"stage {stage}"] = max(far(got, want), apart({name: engine.parameters_of(name) for name in whole}, whole))
        engine.destroy()
    return out


def by_the_trainer(folder: str, config: dict[str, Any] | None, micros: int, count: int = 8) -> dict[str, Any]:
    """Trains with the transformers Trainer on this job's ranks, with or without a ds_config; returns losses, gradient norms and weights."""
    transformers.logging.set_verbosity_error()
    samples = [{key: value[0] for key, value in batch(n, 1, 0, 1).items()} for n in range(count)]
    arguments = transformers.TrainingArguments(
        output_dir=folder,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=micros,
        max_steps=2,
        learning_rate=2e-3,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        deepspeed=config,
        max_grad_norm=0.5,
        train_sampling_strategy="sequential",
    )
    model = made("gpt2")[0]
    trainer = transformers.Trainer(model=model, args=arguments, train_dataset=samples)
    trainer.train()
    seen = [[line["loss"], line["grad_norm"]] for line in trainer.state.log_history if "grad_norm" in line]
    engine = trainer.model_wrapped
    whole = engine.parameters_of("transformer.h.0.mlp.c_fc.weight") if config else model.transformer.h[0].mlp.c_fc.weight
    return {"seen": seen, "sum": float(whole.double().square().sum())}


def refusals() -> dict[str, str]:
    """Returns the errors for unsupported uses of a family or its engine, by case."""
    said: dict[str, str] = {}

    def refused(case: str, call: Callable[[], Any]) -> None:
        try:
            call()
            said[case] = "was accepted"
        except deepspeed.CleaveError as error:
            said[case] = str(error)

    def start(model: Any, **others: Any) -> Any:
        others = {"optimizer": {"type": "AdamW", "params": {"lr": 1e-2}}, **others}
        return deepspeed.initialize(model=model, model_parameters=list(model.parameters()), config=config_of(0, **others))[0]

    class Mine(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.own = torch.nn.Linear(2, 2)

    refused("another module", lambda: start(Mine()))
    refused("another class", lambda: start(transformers.GPT2Model(gpt2().config)))
    headed = llama()
    headed.lm_head = torch.nn.Linear(32, VOCAB, bias=True)
    refused("another head", lambda: start(headed))
    untied = gpt2()
    untied.lm_head.weight = torch.nn.Parameter(untied.lm_head.weight.detach().clone())
    refused("an untied head", lambda: start(untied))
    changed = copy.deepcopy(llama())
    changed.config.hidden_act = "relu6"
    refused("an activation", lambda: start(changed))
    refused("stages", lambda: start(gpt2(), pipeline={"stages": 2}))
    model = gpt2()
    rates = [{"params": [p], "lr": 1e-3 * (1 + n % 2)} for n, p in enumerate(model.parameters())]
    refused("rates", lambda: deepspeed.initialize(model=model, optimizer=torch.optim.AdamW(rates), config=config_of(0)))
    refused("a long sample", lambda: start(gpt2(), cleave={"sequence_length": 25}))
    engine = start(gpt2())
    given = batch(0, 0, 0)
    ids, labels, mask = given["input_ids"], given["labels"], given["attention_mask"]
    refused("no labels", lambda: engine(ids))
    refused("position ids", lambda: engine(ids, labels=ids, position_ids=ids))
    refused("left padding", lambda: engine(ids, labels=labels, attention_mask=mask.flip(1)))
    refused("a label on padding", lambda: engine(ids, labels=ids, attention_mask=mask))
    refused("a token", lambda: engine(ids + 1000, labels=labels))
    refused("too many samples", lambda: engine(ids.repeat(2, 1), labels=labels.repeat(2, 1)))
    refused("too many tokens", lambda: engine(ids.repeat(1, 2), labels=labels.repeat(1, 2)))
    loss = engine(**given).loss
    refused("two calls", lambda: engine(**given))
    engine.backward(loss * 2)
    engine.step()
    once = engine(**given).loss
    refused("a loss used otherwise", lambda: engine.backward(once))
    refused("autocast", lambda: start(gpt2(), torch_autocast={"enabled": True}))
    engine.destroy()
    return said
