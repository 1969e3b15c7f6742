#!/usr/bin/env python3
"""Turns the logs of scripts/gpu_check.sh into one table and results.json. usage: gpu_table.py LOGS; ends with 1 when a test,
the sanitizer or a training row failed."""
import glob
import json
import os
import re
import statistics
import sys

logs = sys.argv[1]
# Tokens a second on one H200, and the published number of one H100 that stands behind each.
GOALS = {"gpt2": 500e3, "gpt2-medium": 200e3, "gpt2-xl": 52e3, "qwen2.5-1.5b": 58.8e3, "qwen2.5-3b": 30.9e3, "qwen2.5-7b": 13.85e3}
PEER_GOAL = 1.15
WARMUP = 5


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
    return {124: "out of its time limit", 125: "the whole time was up", 137: "killed"}.get(status, f"exit code {status}")


def last_line(name):
    lines = [line for line in text(name).splitlines() if line.strip()]
    return lines[-1][:160] if lines else ""


def tests():
    """A row for each test program: counts from its JSON, or from its log when it did not come to the end."""
    rows = []
    for log in sorted(glob.glob(path("*_test.log"))):
        name = os.path.basename(log)[:-4]
        status = int(text(name + ".status") or -1)
        row = {"name": name, "passed": 0, "failed": 0, "skipped": 0, "notes": []}
        report = load(name + ".json")
        if report:
            for suite in report.get("testsuites", []):
                for case in suite.get("testsuite", []):
                    full = f"{suite['name']}.{case['name']}"
                    if case.get("failures"):
                        row["failed"] += 1
                        row["notes"].append("failed: " + full)
                    elif case.get("result") == "SKIPPED":
                        row["skipped"] += 1
                        reason = " ".join(s.get("message", "") for s in case.get("skipped", []))
                        row["notes"].append(f"skipped: {full}: {' '.join(reason.split())[:140]}")
                    elif case.get("result") == "COMPLETED":
                        row["passed"] += 1
        else:
            log_text = text(name + ".log")
            row["passed"] = len(re.findall(r"^\[       OK \]", log_text, re.M))
            row["failed"] = len(re.findall(r"^\[  FAILED  \] .* \(\d+ ms\)", log_text, re.M))
            row["skipped"] = len(re.findall(r"^\[  SKIPPED \] .* \(\d+ ms\)", log_text, re.M))
            begun = re.findall(r"^\[ RUN      \] (.*)", log_text, re.M)
            if status != 0:
                row["failed"] += 1
                row["notes"].append(f"failed: {ended(status)}{' in ' + begun[-1] if begun else ''}")
        rows.append(row)
    return rows


def kernels():
    rows, ceilings = [], ""
    for log in sorted(glob.glob(path("kernels_*.log"))):
        name = os.path.basename(log)[:-4]
        if name.endswith("_test"):
            continue
        found = re.search(r"^cuda:0; limits: .*", text(name + ".log"), re.M)
        ceilings = found.group(0) if found else ceilings
        report = load(name + ".json")
        if not report:
            rows.append({"name": name, "error": last_line(name + ".log")})
            continue
        for b in report.get("benchmarks", []):
            if b.get("error_occurred"):
                rows.append({"name": b["name"], "error": b.get("error_message", "")})
                continue
            unit = "TFLOP/s" if "TFLOP/s" in b else "TB/s"
            own = " (own)" if name.endswith("_own") else ""  # without cuDNN and epilogues
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


def training():
    rows = []
    for model, goal in GOALS.items():
        meta, peer_log = load(f"train_{model}.json"), f"peer_{model}.log"
        peer = next((x for x in json_lines(peer_log) if "tokens_per_s" in x), None)
        if not meta and not peer and not text(peer_log):
            continue
        steps = [x for x in json_lines(f"train_{model}.jsonl") if "tokens_per_s" in x][WARMUP:]
        rate = statistics.median(float(x["tokens_per_s"]) for x in steps) if steps else 0
        row = {"model": model, "tokens_per_s": rate, "goal": goal, "micro": (meta or {}).get("micro"),
               "accumulation": (meta or {}).get("accumulation"), "optimizer_home": (meta or {}).get("optimizer_home"),
               "steps": len(steps), "peer": peer["tokens_per_s"] if peer else 0, "notes": []}
        if meta and meta["status"] != 0:
            row["notes"].append(f"{ended(meta['status'])}: {last_line(f'train_{model}.log')}")
        if not peer and text(peer_log):
            row["notes"].append("PyTorch: " + last_line(peer_log))
        rows.append(row)
    return rows


def graphs():
    """Tokens a second of one model with and without CUDA graphs."""
    rows = []
    for log in sorted(glob.glob(path("graphs_*_on.log"))):
        model = os.path.basename(log)[len("graphs_"):-len("_on.log")]
        rate = {}
        for use in ("off", "on"):
            steps = [float(x["tokens_per_s"]) for x in json_lines(f"graphs_{model}_{use}.jsonl") if "tokens_per_s" in x][WARMUP:]
            rate[use] = statistics.median(steps) if steps else 0
        missing = next((use for use in rate if not rate[use]), None)
        rows.append({"model": model, **rate, "failed": last_line(f"graphs_{model}_{missing}.log") if missing else ""})
    return rows


def ranks():
    """Two ranks at a stage: whether CUDA IPC gave the losses and norms of the way through host memory."""
    rows = []
    for log in sorted(glob.glob(path("ranks_ipc_*.log"))):
        stage = os.path.basename(log)[len("ranks_ipc_"):-4]
        names = [f"ranks_{way}_{stage}" for way in ("host", "ipc")]
        broken = next((n for n in names if int(text(n + ".status") or -1) != 0), None)
        host, ipc = ([(x["loss"], x["grad_norm"]) for x in json_lines(n + ".jsonl") if "loss" in x] for n in names)
        result = "the same bits" if host and host == ipc else f"FAILED: {sum(a != b for a, b in zip(host, ipc))} of {len(host)} steps differ"
        if broken:
            result = f"FAILED: {broken} ended with {ended(int(text(broken + '.status') or -1))}: {last_line(broken + '.log')}"
        rows.append({"stage": stage, "same": result == "the same bits", "steps": len(ipc), "result": result})
    return rows


def sanitizer():
    rows = []
    for log in sorted(glob.glob(path("sanitizer_*.log"))):
        name = os.path.basename(log)[:-4]
        status = int(text(name + ".status") or -1)
        summary = re.findall(r"^=+ ((?:ERROR|RACECHECK) SUMMARY: .*)", text(name + ".log"), re.M)
        rows.append({"name": name, "status": status, "summary": summary[-1] if summary else last_line(name + ".log")})
    return rows


def main():
    test_rows, (kernel_rows, ceilings), train_rows, sanitizer_rows = tests(), kernels(), training(), sanitizer()
    rank_rows, graph_rows = ranks(), graphs()
    attention = [x for x in json_lines("peer_attention.log") if "attention" in x]
    skipped = [text(n).strip() for n in ("peers.skipped", "sanitizer.skipped") if text(n)]
    bad = sum(r["failed"] for r in test_rows) + sum(r["status"] != 0 for r in sanitizer_rows)
    bad += sum(not r["same"] for r in rank_rows) + sum(bool(r["failed"]) for r in graph_rows)
    bad += sum(bool(r["notes"]) and not r["tokens_per_s"] for r in train_rows if r["micro"])
    out = ["", "=" * 100]
    report = load("report.json") or {}
    for i, g in enumerate(report.get("cuda", {}).get("gpus", [])):
        out.append(f"cuda:{i}: {g['name']}, {g['memory_bytes'] / 2**30:.0f} GiB, driver for CUDA {report['cuda']['driver']}")
    if text("manifest.txt"):
        out.append(text("manifest.txt").splitlines()[0])
    if test_rows:
        out.append(f"\n{'tests':44}{'passed':>8}{'failed':>8}{'skipped':>8}")
        for r in test_rows:
            out.append(f"{r['name']:44}{r['passed']:8}{r['failed']:8}{r['skipped']:8}")
            out += ["    " + n for n in r["notes"][:12]]
            if len(r["notes"]) > 12:
                out.append(f"    and {len(r['notes']) - 12} more in the log")
        out.append(f"{'all':44}" + "".join(f"{sum(r[k] for r in test_rows):8}" for k in ("passed", "failed", "skipped")))
    for r in rank_rows:
        out.append(f"{'2 ranks, ZeRO-' + r['stage'] + ', CUDA IPC':44}{r['result']}, {r['steps']} steps")
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
        out.append(f"\n{'training, T = 1024, bf16':24}{'micro x acc':>12}{'tokens/s':>12}{'goal':>10}{'of goal':>9}{'PyTorch':>12}{'ratio':>8}"
                   f"   (ratio's goal {PEER_GOAL})")
        for r in train_rows:
            rate, peer = r["tokens_per_s"], r["peer"]
            shape = f"{r['micro']} x {r['accumulation']}" if r["micro"] else "-"
            out.append(f"{r['model']:24}{shape:>12}{rate:12,.0f}{r['goal']:10,.0f}{rate / r['goal']:9.2f}" +
                       (f"{peer:12,.0f}" if peer else f"{'-':>12}") + (f"{rate / peer:8.2f}" if peer and rate else f"{'-':>8}") +
                       ("   optimizer in host memory" if r["optimizer_home"] == "cpu" else ""))
            out += ["    " + n for n in r["notes"]]
    for r in graph_rows:
        out.append(f"{r['model'] + ', CUDA graphs on / off':44}" + (f"FAILED: {r['failed']}" if r["failed"] else
                   f"{r['on']:,.0f} / {r['off']:,.0f} tokens/s, {r['on'] / r['off']:.3f} x"))
    out += ["skipped: " + s for s in skipped]
    out.append("nothing failed" if bad == 0 else f"{bad} failed")
    print("\n".join(out))
    with open(path("results.json"), "w") as f:
        json.dump({"report": report, "tests": test_rows, "ranks": rank_rows, "sanitizer": sanitizer_rows, "ceilings": ceilings, "kernels": kernel_rows,
                   "attention_peer": attention, "training": train_rows, "graphs": graph_rows, "skipped": skipped}, f, indent=1)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
