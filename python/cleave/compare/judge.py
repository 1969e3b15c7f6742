"""Compares the records of both runs and lists their differences in the order of the computation."""

import pathlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from .events import events_of

# Order of the differences within a step.
_INITIAL, _PASSES, _GRADIENT, _NORM, _SKIPPED, _GROUP, _UPDATE = range(7)


@dataclass
class Difference:
    """A difference between the runs."""

    what: str
    step: int  # from 0
    order: tuple[int, ...]  # within the step
    where: str = ""  # module or parameter
    rank: int | None = None
    micro: int | None = None
    got: Any = None  # value of the engine
    want: Any = None  # value of the reference
    difference: float | None = None
    allowed: float | None = None
    note: str = ""
    event: dict[str, Any] = field(default_factory=dict)
    engine: int = 1


@dataclass
class Verdict:
    """Result of a comparison."""

    steps: int
    asked: int
    ranks: int
    parameters: int
    engines: int = 1
    compared: int = 0  # inputs, outputs and losses
    differences: list[Difference] = field(default_factory=list)
    largest: dict[str, dict[str, Any]] = field(default_factory=dict)  # closest to the allowed difference, by kind
    notes: list[str] = field(default_factory=list)
    start: dict[str, Any] = field(default_factory=dict)


def _pairs(mine: list[Any], theirs: list[Any]) -> Iterator[tuple[Any, Any]]:
    for i in range(max(len(mine), len(theirs))):
        yield mine[i] if i < len(mine) else None, theirs[i] if i < len(theirs) else None


def _grouped(events: list[dict[str, Any]], *keys: str) -> dict[Any, list[dict[str, Any]]]:
    made: dict[Any, list[dict[str, Any]]] = {}
    for event in events:
        made.setdefault(tuple(event[key] for key in keys), []).append(event)
    return made


def _first_of(rank: int, step: int, micro: int, mine: list[Any], theirs: list[Any]) -> Iterator[Difference]:
    """Yields the first difference of the inputs, outputs and losses of a micro-batch on a rank, and a count of the others."""
    for at, (a, b) in enumerate(_pairs(mine, theirs)):
        event = a or b
        where, order = event.get("module", ""), (_PASSES, micro, at, rank)
        if a is None or b is None or any(a.get(key) != b.get(key) for key in ("what", "module", "index", "type", "shape")):
            run = "reference" if a is None else "engine"
            what, note = "call", f"only the {run} run calls it here" if a is None or b is None else "the runs call different modules here"
            got, want = (None if e is None else f"{e['what']} of {e.get('module') or 'the model'}" for e in (a, b))
            if a and b and a["what"] == b["what"] == "output" and a["module"] == b["module"]:
                note, (got, want) = "type or shape", (f"{e['type']} {e['shape']}" for e in (a, b))
            yield Difference(what, step, order, where, rank, micro, got, want, note=note, event=event)
            return
        if a["what"] == "loss":
            if a["value"] != b["value"] and not (a["value"] != a["value"] and b["value"] != b["value"]):
                apart = abs(a["value"] - b["value"])
                yield Difference("loss", step, order, "", rank, micro, a["value"], b["value"], apart, 0.0, event=a)
                return
        elif a["sum"] != b["sum"] and not (a["norm"] == b["norm"] == 0.0 and not a["type"].startswith("int")):
            apart = max(abs(a["norm"] - b["norm"]), abs(a["product"] - b["product"]))
            yield Difference(a["what"], step, order, where, rank, micro, a["norm"], b["norm"], apart, 0.0, event=a)
            return


def _passes(rank: int, mine: list[dict[str, Any]], theirs: list[dict[str, Any]], steps: int) -> Iterator[Difference]:
    a, b = _grouped(mine, "step", "micro"), _grouped(theirs, "step", "micro")
    for step, micro in sorted(set(a) | set(b)):
        if step >= steps:
            continue
        here = [side.get((step, micro), []) for side in (a, b)]
        trains = [any(e["what"] == "loss" for e in side) for side in here]
        if trains[0] != trains[1]:
            missing = "engine" if trains[1] else "reference"
            order = (_PASSES, micro, 0, rank)
            yield Difference("micro-batch", step, order, "", rank, micro, trains[0], trains[1], note=f"missing in the {missing} run")
            continue
        yield from _first_of(rank, step, micro, *here)


def _values_of(events: list[dict[str, Any]], step: int) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for event in events:
        if event["step"] == step:
            found.update({name: {"frozen": name in event["frozen"], **event["values"]} for name in event["names"]})
    return found


def _near(a: Any, b: Any) -> bool:
    if isinstance(a, list):
        return len(a) == len(b) and all(map(_near, a, b))
    return bool(abs(a - b) <= 1e-9 * max(abs(a), abs(b)))


def _groups(mine: list[dict[str, Any]], theirs: list[dict[str, Any]], step: int, places: dict[str, int]) -> Iterator[Difference]:
    a, b = _values_of(mine, step), _values_of(theirs, step)
    for name in dict.fromkeys([*b, *a]):
        place = places.get(name, len(places))
        if name not in a or name not in b:
            has = "the reference" if name not in a else "the engine"
            note = f"only the optimizer of {has} run has it"
            got, want = ("in the optimizer" if name in side else "not in the optimizer" for side in (a, b))
            yield Difference("parameter without optimizer", step, (_GRADIENT, -1, place), name, note=note, got=got, want=want)
            continue
        if a[name]["frozen"] != b[name]["frozen"]:
            yield Difference("frozen parameter", step, (_GRADIENT, -1, place), name, got=a[name]["frozen"], want=b[name]["frozen"])
        for key in a[name]:
            if key != "frozen" and key in b[name] and not _near(a[name][key], b[name][key]):
                yield Difference(key, step, (_GROUP, place), name, got=a[name][key], want=b[name][key])


def _of_first_rank(mine: list[Any], theirs: list[Any], verdict: Verdict, places: dict[str, int]) -> Iterator[Difference]:
    groups = [[e for e in side if e["what"] == "group"] for side in (mine, theirs)]
    for step in range(verdict.steps):
        yield from _groups(groups[0], groups[1], step, places)
    count = len(places)
    for event in theirs:
        what, step, name = event["what"], event["step"], event.get("name", "")
        place = places.get(name, count)
        if what == "initial":
            yield Difference("initial weight", 0, (_INITIAL, 1, place), name, note="the engine starts from another value than its module")
        elif what == "norm" and not abs(event["got"] - event["want"]) <= event["allowed"] and event["want"] < float("inf"):
            apart = abs(event["got"] - event["want"])
            yield Difference("norm", step, (_NORM,), "", got=event["got"], want=event["want"], difference=apart, allowed=event["allowed"])
        elif what == "skipped" and event["got"] != event["want"]:
            yield Difference("skipped step", step, (_SKIPPED,), "", got=event["got"], want=event["want"])
        elif what in ("gradient", "update", "own update"):
            what = "update of the reference" if what == "own update" else what
            if what == "gradient" or not event.get("frozen"):
                held = verdict.largest.get(what)
                if held is None or event["beyond"] > held["beyond"]:
                    verdict.largest[what] = event
            if event["beyond"] > 1 or event["beyond"] != event["beyond"]:
                order = (_GRADIENT, 0, -place) if what == "gradient" else (_UPDATE, place)  # a backward ends with the first module
                what = "missing gradient" if what == "gradient" and event["got"] == 0 else what
                what = "frozen parameter moved" if event.get("frozen") else what
                got, want = event["got"], event["want"]
                yield Difference(what, step, order, name, None, None, got, want, event["difference"], event["allowed"], event=event)


def _initial(rank: int, mine: list[Any], theirs: list[Any], places: dict[str, int]) -> Iterator[Difference]:
    a, b = (dict(next((e["of"] for e in side if e["what"] == "values"), {})) for side in (mine, theirs))
    for name in a:
        if name in b and a[name] != b[name]:
            note = "the script gives the parameter another value before initialize"
            yield Difference("initial value", 0, (_INITIAL, 0, places.get(name, 0), rank), name, rank, note=note)


def judge(folder: pathlib.Path, asked: int) -> Verdict | None:
    """Compares both runs by the records in a folder, for every engine. Returns None if no engine was created."""
    verdict: Verdict | None = None
    for number in range(1, 1 + len(list(folder.glob("engine*")))):
        found = _of_engine(folder / f"engine{number}", asked)
        for d in found.differences:
            d.engine = number
        if verdict is None:
            verdict = found
        else:
            verdict.engines, verdict.compared = number, verdict.compared + found.compared
            verdict.parameters += found.parameters
            verdict.differences += found.differences
    if verdict and verdict.engines > 1:
        verdict.differences.sort(key=lambda d: d.step)
        verdict.notes.append(f"{verdict.engines} engines; the first one counts the steps")
    return verdict


def _of_engine(folder: pathlib.Path, asked: int) -> Verdict:
    first = [events_of(folder / role, 0) for role in ("subject", "reference")]
    done = [sum(e["what"] == what for e in side) for side, what in zip(first, ("step", "skipped"), strict=True)]
    start = next(e for e in first[0] if e["what"] == "start")
    names = list(next(e["of"] for e in first[0] if e["what"] == "values"))
    trained = list(dict.fromkeys(n for e in first[0] if e["what"] == "group" for n in e["names"]))
    places = {name: i for i, name in enumerate(dict.fromkeys([*start["names"], *names, *trained]))}
    verdict = Verdict(min(done), asked, start["ranks"], len(start["names"]), start=start)
    passes = ("input", "output", "loss")
    for rank in range(verdict.ranks):
        sides = [events_of(folder / role, rank, *passes, "values") for role in ("subject", "reference")]
        verdict.differences += _initial(rank, sides[0], sides[1], places)
        mine, theirs = ([e for e in side if e["what"] in passes] for side in sides)
        verdict.compared += sum(e["step"] < verdict.steps for e in mine)
        verdict.differences += _passes(rank, mine, theirs, verdict.steps)
    verdict.differences += _of_first_rank(first[0], first[1], verdict, places)
    verdict.differences.sort(key=lambda d: (d.step, d.order))
    if done[0] != done[1]:
        note = "the runs have different numbers of steps"
        verdict.differences.append(Difference("number of steps", verdict.steps, (0,), got=done[0], want=done[1], note=note))
    skipped = sum(e["what"] == "step" and e["skipped"] and e["step"] < verdict.steps for e in first[0])
    if skipped:
        verdict.notes.append(f"{skipped} of {verdict.steps} steps are skipped after an overflow, so their updates are not compared")
    if verdict.steps < asked:
        verdict.notes.append(f"the script ended after {verdict.steps} of {asked} steps")
    empty = {e["name"] for e in first[1] if e["what"] == "gradient"}
    empty -= {e["name"] for e in first[1] if e["what"] == "gradient" and (e["got"] or e["want"])}
    if empty:
        verdict.notes.append(
            f"no gradient reached {', '.join(sorted(empty, key=lambda n: places.get(n, 0))[:5])}" + " ..." * (len(empty) > 5)
        )
    return verdict
