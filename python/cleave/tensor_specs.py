"""Rules that select the layers of a module to split over tensor-parallel ranks, as AutoTP in DeepSpeed has them."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from .errors import NotBuilt, UsageError

KEY = "tensor_parallel.autotp_size"
CONFIG = "tensor_parallel.partition_config"
HEADS = ("lm_head", "embed_out")
FUSED_HEADS = 0  # blocks of queries, keys and values by the numbers of heads in the config


@dataclass(frozen=True)
class Spec:
    """A rule for the layers with a matching weight name."""

    patterns: tuple[str, ...]
    kind: str = "column"  # "column": splits outputs, "row": splits inputs, "skip": whole
    blocks: tuple[int, ...] | int = 1  # sizes, or the number of equal parts, of a fused weight
    gather_output: bool = False
    grad_allreduce: bool = False

    def matches(self, name: str) -> bool:
        return any(re.match(pattern, name) for pattern in self.patterns)


def _named(pattern: str, kind: str = "column", blocks: Any = 1, grad_allreduce: bool = False) -> Spec:
    return Spec((rf"(.*\.)?({pattern})\.(weight|bias)$",), kind, blocks, grad_allreduce=grad_allreduce)


def _decoder(*, row: str, column: str) -> list[Spec]:
    return [_named(row, "row"), _named(column)]


_PLAIN = _decoder(row=r"self_attn\.o_proj|mlp\.down_proj", column=r"self_attn\.[qkv]_proj|mlp\.(gate|up)_proj")
_FUSED_MLP = r"dense_4h_to_h"
_PRESETS = {
    "llama": _PLAIN,
    "qwen2": _PLAIN,
    "bloom": _decoder(
        row=rf"self_attention\.dense|mlp\.{_FUSED_MLP}",
        column=r"self_attention\.query_key_value|mlp\.dense_h_to_4h",
    ),
    "chatglm": [
        _named(rf"self_attention\.dense|mlp\.{_FUSED_MLP}", "row"),
        _named(r"self_attention\.query_key_value", blocks=3),
        _named(r"mlp\.dense_h_to_4h", blocks=2),
    ],
    "mixtral": [
        *_decoder(
            row=r"self_attn\.o_proj|block_sparse_moe\.experts\.\d+\.w2",
            column=r"self_attn\.[qkv]_proj|block_sparse_moe\.experts\.\d+\.w[13]",
        ),
        _named(r"block_sparse_moe\.gate", "skip"),
    ],
    "deepseek_v2": [
        _named(r"self_attn\.(q_a_proj|kv_a_proj_with_mqa)|mlp\.gate", "skip"),
        *_decoder(
            row=r"self_attn\.o_proj|mlp\.(experts\.\d+|shared_experts)\.down_proj",
            column=r"self_attn\.(q_b|kv_b)_proj|mlp\.(experts\.\d+|shared_experts)\.(gate|up)_proj",
        ),
    ],
    "phi3": [*_PLAIN, _named(r"self_attn\.qkv_proj", blocks=FUSED_HEADS), _named(r"mlp\.gate_up_proj", blocks=2)],
}
_BERT = _decoder(
    row=r"layer\.\d+\.(attention\.)?output\.dense", column=r"attention\.self\.(query|key|value)|layer\.\d+\.intermediate\.dense"
)
# Families without a plan in transformers, or with one that DeepSpeed does not accept.
_FAMILIES = {
    "gpt2": [
        _named(r"(attn|crossattention|mlp)\.c_proj", "row"),
        _named(r"crossattention\.c_attn", blocks=2),
        _named(r"attn\.c_attn", blocks=3),
        _named(r"crossattention\.q_attn|mlp\.c_fc"),
    ],
    "opt": _decoder(row=r"layers\.\d+\.(self_attn\.out_proj|fc2)", column=r"layers\.\d+\.(self_attn\.[qkv]_proj|fc1)"),
    "phi3": _PRESETS["phi3"],
    **dict.fromkeys(("bert", "roberta", "xlm-roberta", "camembert", "electra"), _BERT),
}
_NOT = ("bloom", "mpt", "falcon", "deberta", "deberta-v2", "flaubert", "fsmt", "led", "longformer", "xlm", "xlnet", "t5", "mt5")
# Norms of single heads see the heads of one rank, so that each rank has a part of their gradient.
HEAD_NORMS = _named(r"(q|k|query|key)_(layer)?norm", "skip", grad_allreduce=True)
_STYLES = {
    "colwise": ("column", False),
    "colwise_rep": ("column", True),
    "colwise_gather_output": ("column", True),
    "rowwise": ("row", False),
    "embedding_rowwise": ("skip", False),
    "replicated_with_grad_allreduce": ("skip", False),
}


def type_of(module: torch.nn.Module) -> str:
    """Returns the model type of a transformers module, or an empty string."""
    return str(getattr(getattr(module, "config", None), "model_type", "") or "")


def numbers_of(module: torch.nn.Module, *names: str) -> list[int]:
    """Returns the first of these numbers that the module's config has, in a list."""
    config = getattr(module, "config", None)
    config = getattr(config, "text_config", None) or config
    found = (getattr(config, name, None) for name in names)
    return [number for number in found if isinstance(number, int)][:1]


def specs_of(module: torch.nn.Module, section: Mapping[str, Any]) -> tuple[list[Spec], bool]:
    """Returns the rules for a module, and True if each layer must match one: from the ds_config, else of its family, else as AutoTP finds
    row layers.

    Raises:
        NotBuilt: no rule is known for this family.
        UsageError: wrong rules in the ds_config.
    """
    given, preset = section.get("partition_config"), section.get("preset_model")
    if given or preset:
        own = [_of_json(i, spec, module) for i, spec in enumerate((given or {}).get("layer_specs", []))]
        merged = bool(preset) and (not given or bool(given.get("use_default_specs", True)))
        specs = own + (_PRESETS[str(preset).lower()] if merged else [])
        return [*(s for s in specs if s is not None), HEAD_NORMS], bool((given or {}).get("strict_mode"))
    family = type_of(module)
    if family in _NOT:
        raise NotBuilt(f"{KEY}: no rules for {family} models; set {CONFIG}.layer_specs, or remove tensor_parallel")
    found = _FAMILIES.get(family) or _of_plan(module) or _guessed(module)
    return [*found, HEAD_NORMS], False


def _of_json(i: int, given: Mapping[str, Any], module: torch.nn.Module) -> Spec | None:
    """Returns a rule of layer_specs, None if it is for models of another type."""
    where = f"{CONFIG}.layer_specs[{i}]"
    types = given.get("model_types")
    if types and type_of(module).lower() not in [str(t).lower() for t in types]:
        return None
    kind = str(given.get("partition_type", "column")).lower()
    if kind not in ("column", "row", "skip"):
        raise UsageError(f"{where}.partition_type: unknown type (got {kind}, expected column, row or skip)")
    natural, shape = int(kind == "row"), given.get("shape")
    dim = natural if given.get("partition_dim") is None else int(given["partition_dim"])
    blocks: Any = 1
    if kind != "skip" and dim != natural:
        raise NotBuilt(f"{where}.partition_dim: not supported for {kind} layers (got {dim}, expected {natural}); remove it")
    if shape is not None:
        if len(shape) != 2:
            raise NotBuilt(f"{where}.shape: not supported (got {shape}, expected 2 dims, with the fused parts in dim {dim})")
        blocks = tuple(map(int, shape[dim])) if isinstance(shape[dim], list | tuple) else max(1, int(shape[dim]))
    patterns = tuple(map(str, given.get("patterns", ())))
    for pattern in patterns:
        try:
            re.compile(pattern)
        except re.error as error:
            raise UsageError(f"{where}.patterns: {pattern!r} is not a regular expression: {error}") from None
    return Spec(patterns, kind, blocks, bool(given.get("gather_output")), bool(given.get("grad_allreduce")))


def _of_plan(module: torch.nn.Module) -> list[Spec]:
    """Returns the rules of the module's plan in transformers, without the output head, which stays whole."""
    config = getattr(module, "config", None)
    plans = [getattr(config, "base_model_tp_plan", None), getattr(type(module), "_tp_plan", None), vars(module).get("_tp_plan")]
    plan = {name: str(style).lower() for one in plans if isinstance(one, dict) for name, style in one.items()}
    if unknown := sorted(set(plan.values()) - _STYLES.keys()):
        raise NotBuilt(
            f"{KEY}: the plan of {type(module).__name__} in transformers has an unsupported style {unknown[0]}; set {CONFIG}.layer_specs"
        )
    specs = []
    for name, style in plan.items():
        if name.split(".")[-1] not in HEADS:
            kind, gathers = _STYLES[style]
            pattern = ".*" + re.escape(name).replace(r"\*", ".*") + r"\.weight$"
            specs.append(Spec((pattern,), kind, gather_output=gathers, grad_allreduce=style == "replicated_with_grad_allreduce"))
    return specs


def _guessed(module: torch.nn.Module) -> list[Spec]:
    """Returns rules for the linear layers of the blocks in the module's lists: rows are layers before a norm, the last one if the block
    begins with a norm, and those with usual names of row layers; all others are columns."""
    rows, columns = list[str](), list[str]()
    for path, block in _blocks(module):
        last, begins_with_norm = "", False
        for name, layer in block.named_modules(prefix=path):
            if isinstance(layer, torch.nn.Linear):
                named = name.endswith(("out_proj", "o_proj", "down_proj", "attention.dense", "self_attn.dense", "dense_4h_to_h"))
                (rows if named else columns).append(name)
                last = name
            elif "norm" in type(layer).__name__.lower():
                begins_with_norm = begins_with_norm or not last
                _move(last, columns, rows)
        if begins_with_norm:
            _move(last, columns, rows)
    return [
        Spec(tuple(re.escape(f"{n}.weight") + "$" for n in names), kind) for kind, names in (("row", rows), ("column", columns)) if names
    ]


def _move(name: str, columns: list[str], rows: list[str]) -> None:
    if name in columns:
        columns.remove(name)
        rows.append(name)


def _blocks(module: torch.nn.Module, path: str = "") -> Iterable[tuple[str, torch.nn.Module]]:
    """Yields the blocks in the outermost lists of a module."""
    for name, child in module.named_children():
        below = f"{path}.{name}" if path else name
        if isinstance(child, torch.nn.ModuleList):
            yield from ((f"{below}.{i}", block) for i, block in child.named_children())
        else:
            yield from _blocks(child, below)
