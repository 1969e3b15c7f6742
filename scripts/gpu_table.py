#!/usr/bin/env python3
"""Prints the results of one call of scripts/gpu_check.sh as a table. usage: gpu_table.py ARCHIVE|results.json"""

from __future__ import annotations

import csv
import io
import json
import os
import re
import sys
import tarfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "benchmarks"))
import gpu_calls
import predict

RESULTS = ("passed", "failed", "hung", "skipped", "not reached")
# Kinds of work in predict.py by the names of their kernels.
KINDS = (("update", r"adam|lamb|lion|sgd"), ("attention", r"attention|fmha|sdpa|flash|matmul_dq|dot_do_o"), ("products", r"gemm|nvjet|cutlass|cublas|splitK|wgmma_product"))
SECONDS = {"nsecond": 1e-9, "ns": 1e-9, "usecond": 1e-6, "us": 1e-6, "msecond": 1e-3, "ms": 1e-3, "second": 1, "s": 1}


def bad(results):
    """Number of cases that failed or hung."""
    return sum(r["result"] in ("failed", "hung") for r in results.values())


def suites_of(result):
    return result.get("suites") or ({"": result} if "cases" in result else {})


def table(call, results):
    """Returns all cases in order with expected and actual results, then failed cases of suites, and training rows."""
    lines = [f"{call} call of gpu_check"]
    for case in gpu_calls.CALLS[call]:
        r = results.get(case.name, {"result": "not reached", "note": ""})
        lines.append(f"{r['result']:12}{case.name:20}{r.get('seconds', 0):6.1f} s  {r['note'] or 'expected: ' + case.expect}")
        if r["result"] != "passed":
            lines.append(f"{'':40}expected: {case.expect}")
        for suite, of_suite in suites_of(r).items():
            for name, c in of_suite["cases"].items():
                if c["result"] in ("failed", "hung") or (name.startswith("Python") and c["note"]):
                    lines.append(f"{'':4}{c['result']:12}{suite + ' ' if suite else ''}{name} ({c['seconds']} s): {c['note']}")
            skipped = {c["note"]: name for name, c in of_suite["cases"].items() if c["result"] == "skipped"}
            lines += [f"{'':4}skipped     {suite} {name} and others: {note[:160]}" for note, name in skipped.items()]
    rows = [r for r in results.values() if r.get("tokens_per_s") and "model" in r]
    if rows:
        lines.append(f"\n{'training, T = 1024, bf16':26}{'tokens/s':>10}{'goal':>10}{'of goal':>9}{'predicted':>11}")
    for name, r in results.items():
        if r in rows:
            goal, predicted = predict.MODELS[r["model"]][-1], 1 / sum(predict.seconds_a_token(r["model"], step=r["step_tokens"], gpu="h100")[0].values())
            lines.append(f"{name:26}{r['tokens_per_s']:10,.0f}{goal:10,.0f}{r['tokens_per_s'] / goal:9.2f}{predicted:11,.0f}")
    for r in results.values():
        lines += [f"{k['name']:44}{k['value']:8.2f} {k['unit']:8}{k['percent']:8.1f} % of the ceiling" for k in r.get("kernels", [])]
    counts = {}
    for r in results.values():
        counts[r["result"]] = counts.get(r["result"], 0) + 1
    counts["not reached"] = counts.get("not reached", 0) + len([c for c in gpu_calls.CALLS[call] if c.name not in results])
    return "\n".join([*lines, "", ", ".join(f"{counts[r]} {r}" for r in RESULTS if counts.get(r))])


def kernel_times(text):
    """Seconds of each kernel in the last step of a profiled run, from Nsight Compute's CSV lines."""
    rows = csv.DictReader(io.StringIO("\n".join(line for line in text.splitlines() if line.startswith('"'))))
    launches = [(r["Kernel Name"], float(r["Metric Value"].replace(",", "")) * SECONDS[r["Metric Unit"]])
                for r in rows if r.get("Metric Name") == "gpu__time_duration.sum" and r.get("Metric Unit") in SECONDS]  # fmt: skip
    starts = [i for i, (kernel, _) in enumerate(launches) if "Lookup<" in kernel]  # a micro-batch starts with the embedding
    times = {}
    for kernel, seconds in launches[starts[-1] :] if starts else []:
        times[kernel] = times.get(kernel, 0) + seconds
    return times


def profile(result, text):
    """Returns a profiled step by kind of work with its prediction, and the longest kernels."""
    times = kernel_times(text)
    if not times:
        return [f"{result['model']}: no kernel times"]
    predicted = predict.seconds_a_token(result["model"], step=result["step_tokens"], gpu="h100")[0]
    lines = [f"\n{result['model']}, a step of {result['step_tokens']} tokens: {1e3 * sum(times.values()):.2f} ms in kernels"]
    for kind, seconds in predicted.items():
        own = {k: s for k, s in times.items() if next((n for n, p in KINDS if re.search(p, k, re.I)), "moves") == kind}
        lines.append(f"  {kind:12}{1e3 * sum(own.values()):9.2f} ms, predicted {1e3 * seconds * result['step_tokens']:9.2f}")
        for kernel, taken in sorted(own.items(), key=lambda x: -x[1])[:8]:
            kernel = re.sub(r"void |cleave::kernels::gpu::|\(anonymous namespace\)::|<unnamed>::", "", kernel)
            lines.append(f"{1e3 * taken:16.2f} ms  {kernel[:110]}")
    return lines


def main():
    """Prints the table of an archive, with its profiles, or of a results.json."""
    if sys.argv[1].endswith(".json"):
        with open(sys.argv[1]) as f:
            found, tar = json.load(f), None
    else:
        tar = tarfile.open(sys.argv[1])
        found = json.load(tar.extractfile("logs/results.json"))
    print(found["commit"])
    print(table(found["call"], found["results"]))
    for name, r in found["results"].items():
        if tar and name.startswith("profile_") and "model" in r:
            print("\n".join(profile(r, tar.extractfile(f"logs/{name}.log").read().decode(errors="replace"))))
    return 1 if bad(found["results"]) else 0


if __name__ == "__main__":
    sys.exit(main())
