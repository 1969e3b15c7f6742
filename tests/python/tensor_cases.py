"""Cases of tensor_test.py for ranks: modules with split layers, compared with whole ones in torch."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import io
import itertools
import os
from collections.abc import Callable
from typing import Any

import cleave as deepspeed
import plain
import torch
import transformers
from cleave.utils import groups, zero_to_fp32
from torch import nn
from torch.nn import functional as F

VOCAB, LENGTH, WIDTH, STEPS = 60, 10, 32, 3
DECODER = {"vocab_size": VOCAB, "hidden_size": WIDTH, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
DECODER |= {"max_position_embeddings": 16, "pad_token_id": None, "bos_token_id": None, "eos_token_id": None}
GROUPED: dict[str, Any] = {**DECODER, "num_key_value_heads": 2}
NO_DROPOUT = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}


class Blocks(nn.Module):
    """Blocks with a fused layer of three unequal parts, a norm of single heads, and an output head."""

    WIDE, NARROW = 32, 16

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCAB, WIDTH)
        self.qkv = nn.ModuleList([nn.Linear(WIDTH, self.WIDE + 2 * self.NARROW) for _ in range(2)])
        self.out = nn.ModuleList([nn.Linear(self.WIDE + self.NARROW, WIDTH) for _ in range(2)])
        self.scale = nn.ParameterList([nn.Parameter(torch.ones(8)) for _ in range(2)])
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCAB)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        h = self.embed(input_ids)
        for qkv, out, scale in zip(self.qkv, self.out, self.scale, strict=True):
            fused = qkv(h)
            wide, narrow = fused.shape[-1] // 2, fused.shape[-1] // 4
            q, k, v = fused.split([wide, narrow, narrow], -1)
            q = (q.unflatten(-1, (-1, 8)) * scale).flatten(-2)
            h = h + out(torch.cat([q, k * torch.sigmoid(v)], -1))
        return self.head(self.norm(h))


SPECS = {
    "layer_specs": [
        {"patterns": [r"qkv\.\d\.weight"], "shape": [[32, 16, 16], -1]},
        {"patterns": [r"out\.\d\.weight"], "partition_type": "row", "shape": [-1, [32, 16]]},
        {"patterns": [r"scale\.\d"], "partition_type": "skip", "grad_allreduce": True},
        {"patterns": [r"head\.weight"], "gather_output": True},
    ]
}


def gpt2(**more: Any) -> nn.Module:
    config = {"vocab_size": VOCAB, "n_positions": 16, "n_embd": WIDTH, "n_layer": 2, "n_head": 4, **NO_DROPOUT, **more}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**config))


def _family(name: str, **config: Any) -> Callable[[], nn.Module]:
    kind = getattr(transformers, f"{name}ForMaskedLM" if name == "Bert" else f"{name}ForCausalLM")
    return lambda: kind(getattr(transformers, f"{name}Config")(**config))


FAMILIES: dict[str, Callable[[], nn.Module]] = {
    "gpt2": gpt2,
    "llama": _family("Llama", **GROUPED, tie_word_embeddings=False),
    "qwen2": _family("Qwen2", **GROUPED, tie_word_embeddings=True),
    "blocks": Blocks,
    "guessed": lambda: Guessed(),
    "qwen3": _family("Qwen3", **GROUPED, head_dim=8),
    "mistral": _family("Mistral", **GROUPED),
    "gemma": _family("Gemma", **GROUPED, head_dim=8),
    "phi3": _family("Phi3", **GROUPED),
    "phi": _family("Phi", **GROUPED, qk_layernorm=True),
    "gpt_neox": _family("GPTNeoX", **DECODER),
    "gpt_bigcode": _family(
        "GPTBigCode", vocab_size=VOCAB, n_positions=16, n_embd=WIDTH, n_layer=2, n_head=4, multi_query=False, **NO_DROPOUT
    ),
    "opt": _family("OPT", **{**DECODER, "ffn_dim": 48, "dropout": 0.0, "word_embed_proj_dim": WIDTH}),
    "bert": _family("Bert", **DECODER, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0),
}


def seeded(name: str, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    module = FAMILIES[name]()
    with torch.no_grad():
        for p in module.parameters():
            if p.dim() == 1:
                p.add_(0.1 * torch.randn_like(p))  # biases and norms begin with equal values
    return module


def batch(step: int, micro: int, place: int) -> plain.Batch:
    draw = torch.Generator().manual_seed(1000 * step + 10 * micro + place)
    return (torch.randint(1, VOCAB, (2, LENGTH), generator=draw),)


def loss(module: Any, sample: plain.Batch) -> torch.Tensor:
    [ids] = sample
    output = module(input_ids=ids)
    logits = output if isinstance(output, torch.Tensor) else output.logits
    return F.cross_entropy(logits.float().flatten(0, 1), ids.roll(-1, 1).flatten())


ADAMW = {"lr": 1e-2, "weight_decay": 0.1, "eps": 1e-2}


def config(stage: int, name: str = "", ranks: int = 2, **more: Any) -> dict[str, Any]:
    tensor = {"autotp_size": ranks, **({"partition_config": SPECS} if name == "blocks" else {})}
    return {
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": 2,
        "gradient_clipping": 0.5,
        "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 20},
        "optimizer": {"type": "AdamW", "params": ADAMW},
        "tensor_parallel": tensor,
        **more,
    }


def steps(engine: Any, count: int = STEPS, first: int = 0, place: int | None = None) -> list[tuple[float, float]]:
    """Trains; place: of the samples, by default that of the rank."""
    out = []
    for step in range(first, first + count):
        for micro in range(engine.gradient_accumulation_steps()):
            engine.backward(loss(engine, batch(step, micro, groups.get_data_parallel_rank() if place is None else place)))
            engine.step()
        out.append((engine.last_result.loss, engine.get_global_grad_norm()))
    return out


def in_torch(module: nn.Module, places: int, count: int = STEPS, micros: int = 2) -> list[tuple[float, float]]:
    optimizer = torch.optim.AdamW(module.parameters(), **ADAMW)
    return plain.train(module, optimizer, batch, loss, steps=count, micros=micros, ranks=places, clipping=0.5)


def _far(got: list[Any], want: list[Any]) -> float:
    return max(abs(a - b) for x, y in zip(got, want, strict=True) for a, b in zip(x, y, strict=True))


def against_torch(names: list[str], stages: list[int], size: int = 2) -> dict[str, list[float]]:
    """Returns, by module and stage, the largest differences of losses and norms, and of weights, from a loop over whole modules.

    The ranks begin with different weights; those of the first rank count.
    """
    out = {}
    for name in names:
        other = seeded(name)
        want: list[tuple[float, float]] = []
        for stage in stages:
            engine = deepspeed.initialize(model=seeded(name, int(os.environ["RANK"])), config=config(stage, name, size))[0]
            want = want or in_torch(other, engine.dp_world_size)
            got = steps(engine)
            out[f"{name} stage {stage}"] = [_far(got, want), plain.apart(engine, other)]
            engine.destroy()
    return out


def _digests(engine: Any) -> list[list[Any]]:
    """Returns the sums and products of the bits of the whole and split parameters on this rank."""
    parameters = dict(engine.module.named_parameters())
    with deepspeed.zero.GatheredParameters(list(parameters.values())):
        of = {name: hashlib.sha256(p.detach().cpu().view(torch.uint8).numpy().tobytes()).hexdigest() for name, p in parameters.items()}
    return [[name, engine.cut_of(p) is not None and bool(engine.cut_of(p).extents), of[name]] for name, p in parameters.items()]


def in_bf16(name: str, stage: int) -> dict[str, Any]:
    """Returns losses of a training in bf16 and of a whole module under autocast in torch, and digests of the rank's weights."""
    engine = deepspeed.initialize(model=seeded(name), config=config(stage, name, bf16={"enabled": True}))[0]
    got = steps(engine, 6)
    other = seeded(name).bfloat16()
    want = [loss(other, batch(0, m, p)).item() for m in range(2) for p in range(engine.dp_world_size)]
    return {"losses": [one for one, _ in got], "first": sum(want) / len(want), "weights": _digests(engine)}


VARIANTS: dict[str, dict[str, Any]] = {
    "offload": {"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "cpu"}}},
    "exact sums": {"cleave": {"exact_sums": True}},
    "torch optimizer": {"optimizer": {"type": "NAdam", "params": {"lr": 1e-2, "eps": 1e-2}}},
    "Lamb": {"optimizer": {"type": "Lamb", "params": {"lr": 1e-2, "eps": 1e-2}}},
    "alias": {"tensor_parallel": {"tp": {"tp_size": 2}}},
    "preset": {"tensor_parallel": {"autotp_size": 2, "preset_model": "llama"}},
    "autocast": {"torch_autocast": {"enabled": True, "dtype": "bfloat16"}},
    "zero.Init": {"zero_optimization": {"stage": 3}},
    "checkpointing": {},
    "unfrozen": {},
    "second engine": {},
}


def _variant(kind: str, given: dict[str, Any]) -> tuple[list[tuple[float, float]], dict[str, torch.Tensor]]:
    torch.manual_seed(0)
    given = {**given, "zero_allow_untested_optimizer": True}
    with deepspeed.zero.Init(config_dict_or_path=given) if kind == "zero.Init" else contextlib.nullcontext():
        module: Any = FAMILIES["llama"]()
    if kind == "checkpointing":
        module.gradient_checkpointing_enable()
    late = list(module.model.layers[0].mlp.parameters()) if kind == "unfrozen" else []
    for p in late:
        p.requires_grad_(False)
    parameters = list(module.parameters())
    engine = deepspeed.initialize(model=module, model_parameters=parameters, config=given)[0]
    if kind == "second engine":  # of whole layers
        deepspeed.initialize(model=seeded("qwen2"), config={"train_micro_batch_size_per_gpu": 2})
    got = steps(engine, 1, 0, 0)
    for p in late:
        p.requires_grad_(True)
    got += steps(engine, 2, 1, 0)
    weights = {name: engine.parameters_of(name) for name, _ in module.named_parameters()}
    for name, value in engine.whole_weights():
        assert name not in weights or torch.equal(value.float().cpu(), weights[name].view(value.shape)), name
    engine.destroy()
    return got, weights


def variants() -> dict[str, float]:
    """Returns, by variant, the largest difference of losses, norms and weights between a split and a whole module on two ranks."""
    out = {}
    for kind, more in VARIANTS.items():
        given = {**config(2), **more}
        split, weights = _variant(kind, given)
        whole, others = _variant(kind, {key: value for key, value in given.items() if key != "tensor_parallel"})
        out[kind] = max(_far(split, whole), *(float((weights[name] - others[name]).abs().max()) for name in others))
    return out


def with_dropout() -> float:
    """Returns the difference of losses and norms of a module with dropout of whole activations from torch alone."""

    def seeded_again() -> nn.Module:
        torch.manual_seed(5)
        return gpt2(resid_pdrop=0.2, embd_pdrop=0.2)

    module, other = seeded_again(), seeded_again()
    engine = deepspeed.initialize(model=module, config=config(1))[0]
    torch.manual_seed(7 + engine.global_rank)
    engine._partition._share_random_state()
    got = steps(engine)
    torch.manual_seed(7)
    return _far(got, in_torch(other, 1))


def states_of(name: str, stage: int, size: int, folder: str, saves: bool) -> dict[str, Any]:
    """Trains 2 steps and saves, or loads, and trains 2 more; returns the difference from a training in torch, and of exported weights."""
    engine = deepspeed.initialize(model=seeded(name, 0 if saves else 3), config=config(stage, name, size))[0]
    other = seeded(name)
    want, out = in_torch(other, engine.dp_world_size, 4), {}
    if saves:
        out["before"] = _far(steps(engine, 2), want[:2])
        engine.save_checkpoint(folder, client_state={"a": 1})
    else:
        out["client"] = engine.load_checkpoint(folder)[1]
    out["after"] = _far(steps(engine, 2, 2), want[2:])
    wanted = other.state_dict()
    engine.save_16bit_model(os.path.join(folder, f"whole{size}"))
    engine.save_checkpoint(os.path.join(folder, f"again{size}"))
    given = [torch.load(os.path.join(folder, f"whole{size}/pytorch_model.bin"), weights_only=True)]
    given.append(zero_to_fp32.get_fp32_state_dict_from_zero_checkpoint(os.path.join(folder, f"again{size}")))
    for i, state in enumerate([*given, engine._consolidated_16bit_state_dict() or given[0]]):
        out[f"names {i}"] = sorted(wanted.keys() - state.keys())
        out[f"state {i}"] = max(float((state[key] - value).abs().max()) for key, value in wanted.items())
    return out


def with_trainer(size: int, folder: str) -> dict[str, Any]:
    """Returns losses and norms of transformers' Trainer, and its saved weights."""
    given = {
        "train_micro_batch_size_per_gpu": "auto",
        "zero_optimization": {"stage": 2, "stage3_gather_16bit_weights_on_model_save": True},
        "tensor_parallel": {"autotp_size": size},
    }
    keys = {"deepspeed": given, "use_cpu": True, "logging_steps": 1, "report_to": [], "save_strategy": "no", "optim": "adamw_torch"}
    args = transformers.TrainingArguments(folder, per_device_train_batch_size=2, max_steps=4, learning_rate=1e-2, seed=3, **keys)
    samples = [{"input_ids": x, "labels": x} for step in range(8) for x in batch(step, 0, 0)[0]]
    trainer = transformers.Trainer(seeded("llama"), args, train_dataset=samples)
    trainer.train()
    trainer.save_model(folder)
    torch.distributed.barrier()
    saved = transformers.AutoModelForCausalLM.from_pretrained(folder).state_dict()
    seen = [[log["loss"], log["grad_norm"]] for log in trainer.state.log_history if "loss" in log]
    return {"seen": seen, "weights": {name: [float(w.sum()), float(w.abs().sum())] for name, w in saved.items()}}


def planned() -> dict[str, Any]:
    """Returns the bytes of this rank by a plan of the module and by its engine, and the first lines of the engine."""
    given = config(2, tensor_parallel={"autotp_size": 2, "sequence_parallel": True})
    with contextlib.redirect_stdout(io.StringIO()) as said:
        engine = deepspeed.initialize(model=seeded("gpt2"), config=given)[0]
    plan = deepspeed.plan(seeded("gpt2"), config(2), world_size=4)
    of_rank = next(each["memory"] for each in plan.ranks if engine.global_rank in each["ranks"])
    whole = deepspeed.plan(seeded("gpt2"), config(2, ranks=1), world_size=4)
    return {
        "plan": of_rank,
        "engine": engine.memory()["planned"],
        "said": said.getvalue(),
        "layout": "data 2 x tensor 2" in str(plan),
        "weights": [each.ranks[0]["memory"]["device"]["weights"] for each in (plan, whole)],
        "trace": plain.said_of(lambda: deepspeed.plan(seeded("gpt2"), config(2), world_size=4, trace=lambda module: None)),
    }


def parts() -> dict[str, Any]:
    """Returns what GatheredParameters, the functions of states, and groups give on each rank."""
    engine = deepspeed.initialize(model=seeded("llama"), config=config(3))[0]
    whole, name = seeded("llama"), "model.layers.0.mlp.down_proj.weight"
    parameter, norm = dict(engine.module.named_parameters())[name], engine.module.model.norm.weight
    wanted = dict(whole.named_parameters())[name].chunk(2, 1)[groups.get_tensor_model_parallel_rank()]
    utils = deepspeed.utils
    out: dict[str, Any] = {"shape": list(parameter.shape), "get": torch.equal(utils.safe_get_full_fp32_param(parameter), wanted)}
    with deepspeed.zero.GatheredParameters([parameter]):
        out["gathered"] = torch.equal(parameter, wanted)
    engine.backward(loss(engine, batch(0, 0, 0)))
    engine.step()
    engine.backward(loss(engine, batch(0, 1, 0)))
    micros = [loss(whole, batch(0, m, 0)) / 2 for m in range(2)]
    gradient = torch.autograd.grad(sum(micros), dict(whole.named_parameters())[name])[0]
    got = utils.safe_get_full_grad(parameter)
    out["gradient"] = float((got - gradient.chunk(2, 1)[groups.get_tensor_model_parallel_rank()]).abs().max())
    out["grad"] = plain.said_of(lambda: norm.grad)
    engine.step()
    utils.safe_set_full_fp32_param(parameter, torch.full_like(wanted, float(engine.global_rank % 2)))
    utils.safe_set_full_optimizer_state(parameter, torch.full_like(wanted, 1.0 + engine.global_rank % 2), "exp_avg")
    value, state = engine.parameters_of(name), utils.safe_get_full_optimizer_state(parameter, "exp_avg")
    out["set"] = [[float(part.min()), float(part.max())] for part in value.chunk(2, 1)]
    out["state"] = [float(state.min()), float(state.max())]
    out["local"] = plain.said_of(lambda: utils.safe_set_local_fp32_param(parameter, wanted))

    def modifies() -> None:
        with deepspeed.zero.GatheredParameters([parameter], modifier_rank=0), torch.no_grad():
            parameter.fill_(3)

    out["modified"] = plain.said_of(modifies)
    out["groups"] = [groups.get_tensor_model_parallel_rank(), groups.get_tensor_model_parallel_world_size()]
    out["groups"] += [groups.get_data_parallel_rank(), groups.get_data_parallel_world_size(), engine.autotp_size()]
    out["groups"] += [
        torch.distributed.get_world_size(groups.get_tensor_model_parallel_group()),
        groups.get_tensor_model_parallel_src_rank(),
    ]
    return out


def init_and_loader() -> dict[str, Any]:
    """Returns results of a module of tp_model_init with a data loader."""
    samples = [{"input_ids": torch.full((LENGTH,), i)} for i in range(1, 17)]
    module = deepspeed.tp_model_init(seeded("llama"), tp_size=2, dtype=torch.bfloat16)
    given = config(2)
    del given["tensor_parallel"]
    engine, _, loader, _ = deepspeed.initialize(model=module, config=given, training_data=samples)
    read = [b["input_ids"][:, 0].tolist() for b in loader]
    batches = iter(deepspeed.utils.RepeatingLoader(loader))
    for _ in range(4):
        engine.backward(loss(engine, (next(batches)["input_ids"].clamp(max=VOCAB - 1),)))
        engine.step()
    out = {"read": read, "dtype": str(engine.module.dtype), "size": [engine.train_batch_size(), engine.autotp_size(), engine.dp_world_size]}
    out["other"] = plain.said_of(lambda: deepspeed.tp_model_init(module, tp_size=4, dtype=torch.bfloat16))
    return out


class Guessed(nn.Module):
    """Blocks of an unknown family, with a number of heads."""

    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.num_heads, self.inner_dim = 4, WIDTH
            self.qkv, self.projection = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH)

        def forward(self, h: torch.Tensor) -> torch.Tensor:
            # The outputs of a head are adjacent.
            q, k, v = self.qkv(h).unflatten(-1, (self.num_heads, -1)).transpose(1, 2).chunk(3, -1)
            mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2)
            return self.projection(mixed.reshape(*h.shape[:2], self.inner_dim))

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attend, self.first = Guessed.Attention(), nn.LayerNorm(WIDTH)
            self.wide, self.down_proj, self.second = nn.Linear(WIDTH, 48), nn.Linear(48, WIDTH), nn.LayerNorm(WIDTH)

        def forward(self, h: torch.Tensor) -> torch.Tensor:
            h = self.first(h + self.attend(h))
            return self.second(h + self.down_proj(F.gelu(self.wide(h))))

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(VOCAB, WIDTH), nn.Linear(WIDTH, VOCAB)
        self.blocks = nn.ModuleList([Guessed.Block() for _ in range(2)])

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        h = self.embed(input_ids)
        for block in self.blocks:
            h = block(h)
        return self.head(h)


class Fused(nn.Module):
    """Blocks whose first layer has two parts one after the other, which a rule for one part cuts wrongly without an error."""

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.gate_up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 96), nn.Linear(48, WIDTH)

        def forward(self, h: torch.Tensor, cache: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
            cache.append(1)
            assert len(cache) == 1, "each call has its own inputs"
            gate, up = self.gate_up(self.norm(h)).chunk(2, -1)
            return h + 0.1 * F.dropout(self.down(F.silu(gate) * up), 0.1, self.training), gate  # a rank has a part of the gate

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(VOCAB, WIDTH), nn.Linear(WIDTH, VOCAB)
        self.blocks = nn.ModuleList([Fused.Block() for _ in range(2)])

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        h = self.embed(input_ids)
        for block in self.blocks:
            h, _ = block(h, [])
        return self.head(h)


def fused() -> dict[str, Any]:
    """Trains fused layers in fp32 and bf16, with and without their shape in the rules."""
    out: dict[str, Any] = {}
    rules = {
        "layer_specs": [{"patterns": [".*gate_up.weight"], "shape": [2, -1]}, {"patterns": [".*down.weight"], "partition_type": "row"}]
    }
    for stage, precision, known in itertools.product((0, 3), ("fp32", "bf16"), (True, False)):
        given = config(stage, **({} if precision == "fp32" else {precision: {"enabled": True}}))
        given["tensor_parallel"] |= {"partition_config": rules} if known else {}
        torch.manual_seed(4)
        engine = deepspeed.initialize(model=Fused(), config=given)[0]
        state = torch.get_rng_state()
        said = plain.said_of(lambda engine=engine: engine.eval()(batch(0, 0, 0)[0]))  # type: ignore[misc]
        out[f"{stage} {precision} {known}"] = said, torch.equal(state, torch.get_rng_state())
        if known:
            said = plain.said_of(lambda engine=engine: engine.backward(loss(engine.train(), batch(0, 0, 0))))  # type: ignore[misc]
            out[f"{stage} {precision} trains"] = said, True
        engine.destroy()
    return out


class Uncovered(nn.Module):
    """A trained number that is applied to the part of one rank."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.gain, self.second = nn.Linear(8, 8), nn.Parameter(torch.tensor(1.5)), nn.Linear(8, VOCAB)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        return self.second(torch.tanh(self.first(F.one_hot(input_ids % 8, 8).float())) * self.gain)


UNCOVERED = {"layer_specs": [{"patterns": ["first.weight"]}, {"patterns": ["second.weight"], "partition_type": "row"}]}


KINDS = ["no layer", "strict", "heads", "width", "family", "tied", "embedding", "dim", "head", "optimizer", "uncovered", "pipeline"]
KINDS += ["adapters", "sequence", "twice", "batches"]


def errors() -> dict[str, str]:
    """Returns the error of each kind of fault."""
    return {kind: plain.said_of(functools.partial(_fails, kind)) for kind in KINDS}


def _fails(kind: str) -> None:
    given = config(1)
    tensor: dict[str, Any] = given["tensor_parallel"]
    module: Any = seeded("llama")
    rules = {
        "no layer": {"layer_specs": [{"patterns": ["nothing"]}]},
        "strict": {"strict_mode": True, "layer_specs": [{"patterns": [".*q_proj.weight"]}]},
        "tied": {"layer_specs": [{"patterns": [".*lm_head.weight"]}]},
        "embedding": {"layer_specs": [{"patterns": [".*embed_tokens.weight"]}]},
        "dim": {"layer_specs": [{"patterns": [".*q_proj.weight"], "partition_dim": 1}]},
        "uncovered": UNCOVERED,
    }
    tensor |= {"partition_config": rules[kind]} if kind in rules else {}
    if kind == "heads":
        module = _family("Llama", **{**GROUPED, "num_key_value_heads": 1})()
    elif kind == "width":
        module = _family("Llama", **{**GROUPED, "intermediate_size": 49})()
    elif kind == "family":
        module = transformers.BloomForCausalLM(transformers.BloomConfig(vocab_size=VOCAB, hidden_size=WIDTH, n_layer=1, n_head=4))
    elif kind == "tied":
        module = seeded("qwen2")
    elif kind == "head":
        tensor["vocab_parallel_lm_head"] = True
    elif kind == "optimizer":
        given |= {"zero_optimization": {"stage": 0}, "optimizer": {"type": "Adafactor", "params": {"lr": 1e-2}}}
    elif kind == "uncovered":
        module = Uncovered()
    elif kind == "adapters":
        module.base_layer = nn.Linear(2, 2)  # as in layers of peft
    elif kind == "pipeline":
        module = deepspeed.PipelineModule([nn.Linear(2, 2)], num_stages=1, loss_fn=F.mse_loss)
    elif kind == "sequence":
        given["sequence_parallel_size"] = 2
    engine = deepspeed.initialize(model=module, config=given)[0]
    if kind == "twice":
        deepspeed.initialize(model=module, config=given)
    for micro in range(2):
        engine.backward(loss(engine, batch(0, micro, engine.global_rank if kind == "batches" else 0)))
        engine.step()
