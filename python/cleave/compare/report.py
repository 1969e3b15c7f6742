"""The report of a comparison: verdict, first difference, other differences and a likely cause."""

import collections
from typing import Any

from .events import VALUES
from .judge import Difference, Verdict


def _number(value: Any) -> str:
    return f"{value:.9g}" if isinstance(value, float) else "none" if value is None else str(value)


def _place(d: Difference) -> str:
    parts = [f"step {d.step + 1}"] + ([f"engine {d.engine}"] if d.engine > 1 else [])
    parts += [f"rank {d.rank}"] if d.rank is not None else []
    parts += [f"micro-batch {d.micro + 1}"] if d.micro is not None else []
    return ", ".join(parts)


def _named(d: Difference) -> str:
    """Returns the name of the tensor or number that differs."""
    tensor = f" (tensor {d.event['index']})" if d.event.get("index") else ""
    if d.what == "input":
        return f"input of the model{tensor}"
    if d.what in ("output", "call"):
        return f"{d.what} of {d.where or 'the model'}" + (f" ({d.event['kind']})" if "kind" in d.event else "") + tensor
    if d.what == "update of the reference":
        return f"update of {d.where} in the reference"
    return f"{d.what} of {d.where}" if d.where else d.what


def _factor(d: Difference) -> float | None:
    """Returns the factor between both gradients if they differ by one."""
    event = d.event
    if event.get("factor") is None or event["far"] > max(1e-3 * event["difference"], 2 * event["allowed"]):
        return None
    return float(event["factor"]) if abs(event["factor"] - 1) > 1e-6 else None


def _divisor(factor: float, many: int, verdict: Verdict) -> str:
    counts = {"the number of ranks": verdict.ranks, "gradient_accumulation_steps": verdict.start["micros"]}
    counts["the number of ranks times gradient_accumulation_steps"] = verdict.ranks * verdict.start["micros"]
    for value, how in ((factor, "not divided by"), (1 / factor if factor else 0.0, "divided twice by")):
        found = [name for name, count in counts.items() if count > 1 and abs(value - count) < 1e-3 * count]
        if found:
            return f"{many} gradients differ by the factor {factor:.6g}: they are {how} {' or '.join(found)}"
    return f"{many} gradients differ by the factor {factor:.6g}: a divisor or factor of the loss, or of a layer after them, differs"


def _of_gradients(verdict: Verdict, first: Difference) -> str:
    here = [d for d in verdict.differences if d.step == first.step and d.what in ("gradient", "missing gradient")]
    count = sum(1 for _ in verdict.start["names"])
    factors = [_factor(d) for d in here]
    if len(here) > 1 and all(f is not None and abs(f - (factors[0] or 0)) < 1e-3 * abs(factors[0] or 1) for f in factors):
        if abs((factors[0] or 0) + 1) < 1e-3:
            return "the gradients have the wrong sign"
        if 2 * len(here) > count:
            return _divisor(factors[0] or 0.0, len(here), verdict)
    if first.what == "missing gradient":
        return "the gradient is zero in the engine: a tensor is detached, or the parameter is not used in this run"
    if first.event.get("want") == 0:
        return "the gradient is zero in the reference: a tensor is detached, or the parameter is not used in that run"
    if factors[0] is not None and len(here) == 1:
        if abs(factors[0] + 1) < 1e-3:
            return "the gradient has the wrong sign"
        return f"only this gradient differs, by the factor {factors[0]:.6g}: a use of the parameter is lost or scaled"
    if len(here) == 1:
        return "only this gradient differs, so a use of the parameter is lost or changed"
    return "outputs and losses are equal, so the backward or the sum over micro-batches and ranks differs"


def _of_passes(verdict: Verdict, first: Difference) -> str:
    here = [d for d in verdict.differences if d.step == first.step and d.what == first.what]
    ranks = sorted({d.rank for d in here if d.rank is not None})
    only = f"only on rank {ranks[0]}" if len(ranks) == 1 and verdict.ranks > 1 else "on every rank" if len(ranks) == verdict.ranks else ""
    if first.what == "input":
        return f"the runs read different samples {only}".rstrip() + ": check the sampler, its seed, and the rank that it uses"
    if first.what == "loss":
        return "the outputs are equal, so the loss itself differs: labels, its function, or a factor"
    if first.what == "call":
        return "the code of the model goes another way: it depends on the run, on a value, or on random numbers that only one run draws"
    if "Dropout" in first.event.get("kind", ""):
        return "dropout differs: its rate, train() or eval(), or random numbers that only one run draws"
    if first.step > 0:
        return "its inputs are equal and so are the weights after the last step: the module computes with stale or changed weights"
    return "its inputs are equal: its weights, its code, or random numbers that only one run draws differ"


def cause(verdict: Verdict) -> str:
    """Returns a likely cause of the first difference, or an empty string."""
    first = verdict.differences[0]
    if first.what in ("gradient", "missing gradient"):
        return _of_gradients(verdict, first)
    if first.what in ("input", "output", "loss", "call"):
        return _of_passes(verdict, first)
    if first.what == "update":
        return str(first.event.get("like") or "")
    if first.what in VALUES:
        others = [d for d in verdict.differences if d.step == first.step and d.what == first.what]
        return f"{counted(len(others), 'parameter')} with another {first.what}: the parameter groups or the schedule differ"
    return _CAUSES.get(first.what, "")


_CAUSES = {
    "parameter without optimizer": "model_parameters, the groups or requires_grad differ, or a tied parameter is not tied in one run",
    "frozen parameter": "requires_grad differs",
    "frozen parameter moved": "requires_grad is False, or the optimizer does not have the parameter, but its value changes within the step",
    "micro-batch": "gradient_accumulation_steps, or the loop of the script, differs",
    "initial value": "random numbers, files or code that the script uses before initialize() differ",
    "initial weight": "the engine changed the value during initialize()",
    "skipped step": "only the gradients of one run overflow",
    "norm": "the gradients are equal, so their norm in the engine is wrong",
}


def _others(verdict: Verdict) -> list[str]:
    counts: dict[str, collections.Counter[str]] = {}
    for d in verdict.differences[1:]:
        if d.step == verdict.differences[0].step:
            module = d.where.rpartition(".")[0] if d.where in verdict.start["names"] else d.where
            counts.setdefault(d.what, collections.Counter())[module or "the model"] += 1
    lines = []
    for what, modules in counts.items():
        shown = ", ".join(f"{module} {count}" for module, count in modules.most_common(6))
        lines.append(f"also:        {what}: {modules.total()} ({shown}{', ...' if len(modules) > 6 else ''})")
    later = sum(d.step != verdict.differences[0].step for d in verdict.differences)
    return lines + ([f"later steps: {later} differences"] if later else [])


def counted(count: int, what: str) -> str:
    """Returns a number with its noun."""
    return f"{count} {what}{'' if count == 1 else 's'}"


def text(verdict: Verdict) -> str:
    """Returns the report for people."""
    size = f"{counted(verdict.steps, 'step')}, {counted(verdict.parameters, 'parameter')}, {counted(verdict.ranks, 'rank')}"
    notes = [f"note: {note}" for note in verdict.notes]
    if not verdict.steps:
        return "\n".join(["not compared: the script ended before its first optimizer step", *notes])
    if not verdict.differences:
        lines = [f"same: {size}; {verdict.compared} inputs, outputs and losses have equal bits"]
        for what, name in (("gradient", "gradient"), ("update", "weight after an update")):
            if event := verdict.largest.get(what):
                place = f"{event['name']} in step {event['step'] + 1}"
                lines.append(f"{name} closest to its limit: {event['difference']:.2g} of {event['allowed']:.2g} allowed, {place}")
        return "\n".join(lines + notes)
    first = verdict.differences[0]
    lines = [f"different: {_place(first)}: {_named(first)}"]
    of = "norm of the " + ("change" if first.what in ("update", "frozen parameter moved") else "tensor")
    kind = f" ({of})" if first.what in ("gradient", "missing gradient", "update", "output", "input", "frozen parameter moved") else ""
    if first.got is not None or first.want is not None:
        mine, theirs = ("reference:   ", "in double:   ") if first.what == "update of the reference" else ("engine:      ", "reference:   ")
        lines += [f"{mine}{_number(first.got)}{kind}", f"{theirs}{_number(first.want)}{kind}"]
    if first.difference is not None:
        lines.append(f"difference:  {first.difference:.3g}, allowed {first.allowed:.3g}")
    if "values" in first.event:
        lines.append(
            f"element:     {first.event['at']}: {_number(first.event['values'][0])}, reference {_number(first.event['values'][1])}"
        )
    lines += [f"note:        {first.note}"] if first.note else []
    lines += [f"cause:       {found}"] if (found := cause(verdict)) else []
    return "\n".join(lines + _others(verdict) + [f"compared:    {size}"] + notes)


def _of_json(d: Difference) -> dict[str, Any]:
    micro = None if d.micro is None else d.micro + 1
    place = {"what": d.what, "engine_number": d.engine, "step": d.step + 1, "rank": d.rank, "micro_batch": micro, "name": d.where}
    return place | {"engine": d.got, "reference": d.want, "difference": d.difference, "allowed": d.allowed, "note": d.note}


def as_json(verdict: Verdict) -> dict[str, Any]:
    """Returns the report for programs."""
    kept = ("name", "step", "difference", "allowed", "beyond")
    largest = {what: {key: event[key] for key in kept} for what, event in verdict.largest.items()}
    return {
        "same": bool(verdict.steps) and not verdict.differences,
        "steps": verdict.steps,
        "ranks": verdict.ranks,
        "parameters": verdict.parameters,
        "compared_outputs": verdict.compared,
        "largest": {what: {**event, "step": event["step"] + 1} for what, event in largest.items()},
        "differences": [_of_json(d) for d in verdict.differences],
        "cause": cause(verdict) if verdict.differences else "",
        "notes": verdict.notes,
    }
