#!/usr/bin/env python3
"""Turns the logs of a call of scripts/gpu_check.sh into one table and results.json, whatever part of them there is.
usage: gpu_table.py LOGS; ends with 1 when a test, the sanitizer or a training row failed."""
import csv
import glob
import io
import json
import os
import re
import statistics
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "benchmarks"))
import predict  # noqa: E402

logs = sys.argv[1]
PEER_GOAL = 1.15
GRAPHS_WARMUP = 5


def path(name):
    return os.path.join(logs, name)


def text(name):
    try:
        with open(path(name), errors="replace") as f:
            return f.read()
    except OSError:
        return ""


def load(name):
    try:
        return json.loads(text(name))
    except ValueError:
        return None


def ended(status):
    if status < 0:
        return f"killed by signal {-status}"
    return {124: "out of its time limit", 125: "the whole time was up", 137: "killed"}.get(status, f"exit code {status}")


def last_line(name):
    lines = [line for line in text(name).splitlines() if line.strip()]
    return lines[-1][:160] if lines else ""


def status_of(name):
    try:
        return int(text(name + ".status"))
    except ValueError:
        return -1


def tests():
    """A row for each suite of gpu_suite.py."""
    rows = []
    for name in sorted(os.path.basename(f)[:-len(".suite.json")] for f in glob.glob(path("*.suite.json"))):
        suite = load(name + ".suite.json") or {"cases": {}, "notes": ["its results cannot be read"], "memchecks": []}
        results = [c["result"] for c in suite["cases"].values()]
        row = {"name": name, "notes": [], **{r: results.count(r) for r in ("passed", "failed", "skipped", "not run")}}
        row["notes"] += [f"failed: {n}: {c['note']}" for n, c in suite["cases"].items() if c["result"] == "failed"]
        row["notes"] += [f"memcheck of {m['case']}: {m['first']}" for m in suite["memchecks"]]
        row["notes"] += ["failed: " + n for n in suite["notes"]]
        row["failed"] += len(suite["notes"])
        left_out = [n for n, c in suite["cases"].items() if c["result"] == "not run"]
        row["notes"] += [f"left out: {len(left_out)}, from {left_out[0]} on"] if left_out else []
        reasons = {}
        for name_of_case, c in suite["cases"].items():
            if c["result"] == "skipped":
                reasons.setdefault(c["note"], []).append(name_of_case)
        row["notes"] += [f"skipped: {len(n)}, as {n[0]}: {reason[:140]}" for reason, n in reasons.items()]
        rows.append(row)
    known = {row["name"] for row in rows}
    for suite in sorted({re.sub("_first$", "", os.path.basename(f)[len("suite_"):-len(".status")]) for f in glob.glob(path("suite_*.status"))} - known):
        status = status_of(f"suite_{suite}" if text(f"suite_{suite}.status") else f"suite_{suite}_first")
        rows.append({"name": suite, "passed": 0, "failed": 1, "skipped": 0, "not run": 0, "notes": [f"left out, all of it: {ended(status)}"]})
    return rows


def benchmarks_of(name):
    """Rows of Google Benchmark's JSON; of a file that ends in the middle, those that are whole."""
    report = load(name)
    if report:
        return report.get("benchmarks", [])
    rows = []
    for found in re.finditer(r"\{[^{}]*\}", text(name)):
        try:
            row = json.loads(found[0])
        except ValueError:
            continue
        if "run_name" in row or "real_time" in row:
            rows.append(row)
    return rows


def kernels():
    rows, ceilings = [], ""
    for log in sorted(glob.glob(path("kernels_*.log"))):
        name = os.path.basename(log)[:-4]
        if name.startswith("kernels_test"):
            continue
        found = re.search(r"^cuda:0; limits: .*", text(name + ".log"), re.M)
        ceilings = found.group(0) if found else ceilings
        found_rows = benchmarks_of(name + ".json")
        if status_of(name) != 0 and name != "kernels_ceilings":
            rows.append({"name": name, "error": f"{ended(status_of(name))}: {last_line(name + '.log')}"})
        for b in found_rows:
            if b.get("error_occurred"):
                rows.append({"name": b["name"], "error": b.get("error_message", "")})
                continue
            unit = "TFLOP/s" if "TFLOP/s" in b else "TB/s"
            # Without cuDNN and epilogues; without cuDNN and the kernels for Hopper.
            own = " (own)" if name.endswith("_own") else " (mma.sync)" if name.endswith("_mma") else ""
            rows.append({"name": b["name"].removeprefix("cuda/").removesuffix("/real_time") + own, "value": b.get(unit, 0), "unit": unit,
                         "percent": b.get("%limit", 0)})
    return rows, ceilings


def json_lines(name):
    out = []
    for line in text(name).splitlines():
        try:
            out.append(json.loads(line))
        except ValueError:
            pass
    return [x for x in out if isinstance(x, dict)]


def rates(name, warmup):
    return [float(x["tokens_per_s"]) for x in json_lines(name) if "tokens_per_s" in x][warmup:]


def beside_the_plan(name):
    """MiB of the GPU's memory that were in use beside what the ranks on it planned, most of the time and at most; none where that was not watched."""
    used = sorted(int(line) for line in text(name + ".memory").splitlines() if line.strip().isdigit())
    start = next((x for x in json_lines(name + ".jsonl") if "memory_planned" in x), None)
    if not used or not start:
        return None
    planned = sum(start["memory_planned"].get("device", {}).values()) / 2**20
    trained = [u - planned for u in used if u >= planned]
    return (statistics.median(trained), max(trained)) if trained else None


def training():
    rows = []
    for model in predict.MODELS:
        meta, peer_log = load(f"train_{model}.json"), f"peer_{model}.log"
        name, warmup = (f"train_{model}", meta["warmup"]) if meta else (f"beside_{model}", 2)
        peer = next((x for x in json_lines(peer_log) if "tokens_per_s" in x), None)
        if not meta and not text(name + ".log") and not text(peer_log):
            continue
        steps = rates(name + ".jsonl", warmup)
        tokens = 1024 * meta["micro"] * meta["accumulation"] if meta else 1024 * 64
        predicted = 1 / sum(predict.seconds_a_token(model, step=tokens)[0].values())
        row = {"model": model, "tokens_per_s": statistics.median(steps) if steps else 0, "goal": predict.MODELS[model][-1], "predicted": predicted,
               "micro": (meta or {}).get("micro"), "accumulation": (meta or {}).get("accumulation"), "steps": len(steps),
               "peer": peer["tokens_per_s"] if peer else 0, "notes": []}
        status = meta["status"] if meta else status_of(name)
        row["beside_the_plan_mib"] = beside_the_plan(name)
        if status != 0:
            row["notes"].append(f"{ended(status)}: {last_line(name + '.log')}")
        if not peer and text(peer_log):
            row["notes"].append("PyTorch: " + last_line(peer_log))
        rows.append(row)
    return rows


# Kinds of work in predict.py, by what their kernels are called.
KIND_OF = (("update", r"adam|lamb|lion|sgd"), ("attention", r"attention|fmha|sdpa|flash"), ("products", r"gemm|nvjet|cutlass|cublas|splitK|wgmma_product"))


def kernel_times(name):
    """Seconds of each kernel in the last step of a profiled run, from Nsight Compute's lines of CSV."""
    lines = [line for line in text(name + ".log").splitlines() if line.startswith('"')]
    rows = list(csv.DictReader(io.StringIO("\n".join(lines))))
    unit = {"nsecond": 1e-9, "ns": 1e-9, "usecond": 1e-6, "us": 1e-6, "msecond": 1e-3, "ms": 1e-3, "second": 1, "s": 1}
    launches = []
    for r in rows:
        if r.get("Metric Name") == "gpu__time_duration.sum" and r.get("Metric Unit") in unit:
            launches.append((r["Kernel Name"], float(r["Metric Value"].replace(",", "")) * unit[r["Metric Unit"]]))
    starts = [i for i, (kernel, _) in enumerate(launches) if "Lookup<" in kernel]  # of the embedding, the first of a micro-batch
    times = {}
    for kernel, seconds in launches[starts[-1]:] if starts else []:
        times[kernel] = times.get(kernel, 0) + seconds
    return times


def profiles():
    """For each profiled model what a kind of work was predicted to take and took, and the kernel that took most of it."""
    rows = []
    for meta in filter(None, (load(os.path.basename(f)) for f in sorted(glob.glob(path("profile_*.json"))) if not f.endswith(".ds.json"))):
        times = kernel_times("profile_" + meta["model"])
        predicted = predict.seconds_a_token(meta["model"], step=meta["tokens"])[0]
        kinds = {k: {"predicted": s * meta["tokens"], "measured": 0.0, "kernels": {}} for k, s in predicted.items()}
        for kernel, seconds in times.items():
            kind = next((k for k, pattern in KIND_OF if re.search(pattern, kernel, re.I)), "moves")
            kinds[kind]["measured"] += seconds
            kinds[kind]["kernels"][kernel] = seconds
        rows.append({"model": meta["model"], "tokens": meta["tokens"], "kinds": kinds, "note": "" if times else
                     f"no kernel times: {ended(status_of('profile_' + meta['model']))}: {last_line('profile_' + meta['model'] + '.log')}"})
    return rows


def blame(profile, most=3):
    """The largest differences between what was measured and predicted, each with its longest kernel."""
    worst = sorted(profile["kinds"].items(), key=lambda k: k[1]["predicted"] - k[1]["measured"])[:most]
    lines = []
    for kind, k in worst:
        kernel, seconds = max(k["kernels"].items(), key=lambda x: x[1], default=("no kernel", 0))
        kernel = re.sub(r"void |cleave::kernels::gpu::|\(anonymous namespace\)::|<unnamed>::", "", kernel)
        lines.append(f"    {kind:12}{1e3 * k['measured']:9.2f} ms, predicted {1e3 * k['predicted']:9.2f}: {1e3 * (k['measured'] - k['predicted']):+9.2f} ms; "
                     f"most of it {kernel[:70]} ({1e3 * seconds:.2f} ms)")
    return lines


def graphs():
    """Tokens a second of one model with and without CUDA graphs."""
    rows = []
    for log in sorted(glob.glob(path("graphs_*_on.log"))):
        model = os.path.basename(log)[len("graphs_"):-len("_on.log")]
        rate = {}
        for use in ("off", "on"):
            steps = rates(f"graphs_{model}_{use}.jsonl", GRAPHS_WARMUP)
            rate[use] = statistics.median(steps) if steps else 0
        missing = next((use for use in rate if not rate[use]), None)
        rows.append({"model": model, **rate, "failed": last_line(f"graphs_{model}_{missing}.log") if missing else ""})
    return rows


def ranks():
    """Two ranks at a stage: whether CUDA IPC gave the losses and norms of the way through host memory to the bit, and NCCL, which adds in
    another order, to 1e-3 (16-bit sums)."""
    rows = []
    for way, tolerance in (("ipc", 0), ("nccl", 1e-3)):
        for log in sorted(glob.glob(path(f"ranks_{way}_*.log"))):
            stage = os.path.basename(log)[len(f"ranks_{way}_"):-4]
            names = [f"ranks_{w}_{stage}" for w in ("host", way)]
            broken = next((n for n in names if status_of(n) != 0), None)
            host, other = ([(x["loss"], x["grad_norm"]) for x in json_lines(n + ".jsonl") if "loss" in x] for n in names)
            differ = sum(any(abs(x - y) > tolerance * abs(x) for x, y in zip(a, b)) for a, b in zip(host, other))
            row = {"stage": stage, "way": way, "steps": len(other), "failed": True}
            if broken == f"ranks_nccl_{stage}" and status_of(broken) == 2:  # refused: too old to share a GPU, or not there
                row.update(failed=False, result="not possible here: " + last_line(broken + ".log"))
            elif broken and status_of(broken) == 125:
                row["result"] = "left out: " + ended(125)
            elif broken:
                row["result"] = f"FAILED: {broken} ended with {ended(status_of(broken))}: {last_line(broken + '.log')}"
            elif not host or len(host) != len(other) or differ:
                row["result"] = f"FAILED: {differ} of {len(host)} steps differ"
            else:
                row.update(failed=False, result="the same bits" if tolerance == 0 else f"the same to {tolerance}")
            rows.append(row)
    return rows


def sanitizer():
    rows = []
    for log in sorted(glob.glob(path("sanitizer_*.log"))):
        name = os.path.basename(log)[:-4]
        status = status_of(name)
        summary = re.findall(r"^=+ ((?:ERROR|RACECHECK) SUMMARY: .*)", text(name + ".log"), re.M)
        rows.append({"name": name, "status": status, "summary": summary[-1] if summary else last_line(name + ".log")})
    return rows


def main():
    test_rows, (kernel_rows, ceilings), train_rows, sanitizer_rows = tests(), kernels(), training(), sanitizer()
    rank_rows, graph_rows, profile_rows = ranks(), graphs(), profiles()
    attention = [x for x in json_lines("peer_attention.log") if "attention" in x]
    skipped = [text(n).strip() for n in ("peers.skipped", "sanitizer.skipped") if text(n)]
    bad = sum(r["failed"] + r["not run"] for r in test_rows) + sum(r["status"] != 0 for r in sanitizer_rows)
    bad += sum(r["failed"] for r in rank_rows) + sum(bool(r["failed"]) for r in graph_rows)
    bad += sum("error" in r for r in kernel_rows)
    bad += sum(bool(r["notes"]) and not r["tokens_per_s"] for r in train_rows)
    out = ["", "=" * 100]
    report = load("report.json") or {}
    for i, g in enumerate(report.get("cuda", {}).get("gpus", [])):
        out.append(f"cuda:{i}: {g['name']}, {g['memory_bytes'] / 2**30:.0f} GiB, driver for CUDA {report['cuda']['driver']}")
    if text("manifest.txt"):
        out.append(text("manifest.txt").splitlines()[0])
    if test_rows:
        counted = ("passed", "failed", "skipped", "not run")
        out.append(f"\n{'tests':44}" + "".join(f"{c:>8}" for c in counted))
        for r in test_rows:
            out.append(f"{r['name']:44}" + "".join(f"{r[c]:8}" for c in counted))
            out += ["    " + n for n in r["notes"][:12]]
            if len(r["notes"]) > 12:
                out.append(f"    and {len(r['notes']) - 12} more in the log")
        out.append(f"{'all':44}" + "".join(f"{sum(r[c] for r in test_rows):8}" for c in counted))
    for name in ("trials", "trials_without_hopper"):
        if text(name + ".log") and status_of(name) != 0:
            bad += 1
            found = re.search(r"warning: .*|.*Failure", text(name + ".log"))
            out.append(f"{name}: {ended(status_of(name))}: {found[0] if found else last_line(name + '.log')}")
    ways = {"ipc": "CUDA IPC", "nccl": "NCCL"}
    for r in rank_rows:
        layout = f"ZeRO-{r['stage']}" if r["stage"].isdigit() else r["stage"]
        out.append(f"{'2 ranks, ' + layout + ', ' + ways[r['way']]:44}{r['result']}, {r['steps']} steps")
    for r in sanitizer_rows:
        out.append(f"{r['name']:24}{'clean' if r['status'] == 0 else 'FAILED: ' + ended(r['status'])}  {r['summary']}")
    if kernel_rows:
        out.append(f"\n{'kernels':44}{'':>16}{'% of ceiling':>16}")
        if ceilings:
            out.append(ceilings)
        for r in kernel_rows:
            out.append(f"{r['name']:44}" + (f"not measured: {r['error']}" if "error" in r else
                                            f"{r['value']:8.2f} {r['unit']:8}{r['percent']:15.1f}"))
    for a in attention:
        out.append(f"{a['attention']:44}{a['tflops']:8.2f} TFLOP/s")
    if train_rows:
        out.append(f"\n{'training, T = 1024, bf16':24}{'micro x acc':>12}{'goal':>10}{'predicted':>11}{'tokens/s':>11}{'of goal':>9}{'PyTorch':>12}{'ratio':>8}"
                   f"   (ratio's goal {PEER_GOAL})")
        for r in train_rows:
            rate, peer = r["tokens_per_s"], r["peer"]
            shape = f"{r['micro']} x {r['accumulation']}" if r["micro"] else "-"
            out.append(f"{r['model']:24}{shape:>12}{r['goal']:10,.0f}{r['predicted']:11,.0f}{rate:11,.0f}{rate / r['goal']:9.2f}" +
                       (f"{peer:12,.0f}" if peer else f"{'-':>12}") + (f"{rate / peer:8.2f}" if peer and rate else f"{'-':>8}"))
            out += [f"    {r['beside_the_plan_mib'][0]:.0f} MiB of the GPU beside the plan, {r['beside_the_plan_mib'][1]:.0f} at most"] if r["beside_the_plan_mib"] else []
            out += ["    " + n for n in r["notes"]]
    for p in profile_rows:
        measured = sum(k["measured"] for k in p["kinds"].values())
        out.append(f"\n{p['model']}, a step of {p['tokens']} tokens: " + (p["note"] or f"kernels took {1e3 * measured:.2f} ms; the largest differences are"))
        out += [] if p["note"] else blame(p)
    for r in graph_rows:
        out.append(f"{r['model'] + ', CUDA graphs on / off':44}" + (f"FAILED: {r['failed']}" if r["failed"] else
                   f"{r['on']:,.0f} / {r['off']:,.0f} tokens/s, {r['on'] / r['off']:.3f} x"))
    out += ["skipped: " + s for s in skipped]
    out.append("nothing failed" if bad == 0 else f"{bad} failed")
    print("\n".join(out))
    with open(path("results.json"), "w") as f:
        json.dump({"report": report, "tests": test_rows, "ranks": rank_rows, "sanitizer": sanitizer_rows, "ceilings": ceilings, "kernels": kernel_rows,
                   "attention_peer": attention, "training": train_rows, "graphs": graph_rows, "profiles": profile_rows, "skipped": skipped}, f, indent=1)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
