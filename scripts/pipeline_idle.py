#!/usr/bin/env python3
"""The idle share of a pipeline's step, from what `cleave train --trace` wrote on its ranks.

  pipeline_idle.py trace.0.json trace.1.json [--skip 1] [--merge all.json]

Files are those of the ranks of one pipe, first stage first; on several hosts their times are of the first rank's clock. Prints for each step:
  idle, measured    1 - computing / (ranks * time from the first computation to the last), wall clock
  idle, replayed    the same of a replay of the ranks' instructions with nothing between them: each computation takes
                    the median of the CPU time of its rank and kind, so what else the machine does does not count
--merge writes one file with all ranks, for Perfetto.
"""
import argparse
import json
import statistics
from collections import defaultdict

COMPUTE = ("forward", "backward", "backward_input", "backward_weight")


def read(path):
    text = open(path).read().rstrip()
    return json.loads(text if text.endswith("]") else text + "]")  # a killed run leaves no bracket


def steps_of(events):
    """Lists of a rank's pipeline events, one a step; updates and skipped steps end where the first micro-batch comes again."""
    steps = []
    seen = set()
    for e in events:
        if e.get("cat") != "pipeline":
            continue
        key = (e["name"], e["args"]["micro"], e["args"]["chunk"])
        if not steps or key in seen:
            steps.append([])
            seen = set()
        seen.add(key)
        steps[-1].append(e)
    return steps


def replay(ranks, cost):
    """Time of the longest rank and computing time of all, when messages take no time."""
    clock, at, mail = [0.0] * len(ranks), [0] * len(ranks), {}
    busy, n = 0.0, len(ranks)
    moved = True
    while moved:
        moved = False
        for r, events in enumerate(ranks):
            while at[r] < len(events):
                e = events[at[r]]
                name, args = e["name"], e["args"]
                if name in COMPUTE:
                    clock[r] += cost[r, name]
                    busy += cost[r, name]
                else:
                    kind, what = name.split("_", 1)
                    up = (kind == "send") == (what == "activation")  # the other rank is the next stage
                    other = (r + (1 if up else -1)) % n
                    if kind == "send":
                        mail.setdefault((what, r, other), []).append(clock[r])
                    else:
                        box = mail.get((what, other, r))
                        if not box:
                            break
                        clock[r] = max(clock[r], box.pop(0))
                at[r] += 1
                moved = True
    assert all(at[r] == len(ranks[r]) for r in range(n)), "the files are not of all ranks of one pipe"
    return max(clock), busy


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+")
    parser.add_argument("--skip", type=int, default=1, help="first steps to leave out: memory is touched for the first time")
    parser.add_argument("--merge")
    options = parser.parse_args()
    traces = [read(f) for f in options.files]
    if options.merge:
        json.dump([e for t in traces for e in t], open(options.merge, "w"))
    ranks = [steps_of(t)[options.skip:] for t in traces]
    steps = min(len(r) for r in ranks)
    if steps == 0:
        raise SystemExit("no steps are left: trace more, or lower --skip")
    times = defaultdict(list)
    for s in range(steps):
        here = [r[s] for r in ranks]
        work = [[e for e in events if e["name"] in COMPUTE] for events in here]
        begin = min(e["ts"] for events in work for e in events)
        end = max(e["ts"] + e["dur"] for events in work for e in events)
        busy = sum(e["dur"] for events in work for e in events)
        print(f"step {s + options.skip}: {(end - begin) / 1e6:.3f} s, idle, measured {100 * (1 - busy / (len(ranks) * (end - begin))):.1f} %")
        for r, events in enumerate(work):
            for e in events:
                times[r, e["name"]].append((e["args"]["cpu_us"], e["dur"]))
    cost = {key: statistics.median(c for c, _ in v) for key, v in times.items()}
    for (r, name), v in sorted(times.items()):
        print(f"rank {r} {name}: median {cost[r, name] / 1e3:.1f} ms of CPU, {statistics.median(d for _, d in v) / 1e3:.1f} ms of wall clock, "
              f"{len(v)} times")
    makespan, busy = replay([r[0] for r in ranks], cost)
    print(f"idle, replayed {100 * (1 - busy / (len(ranks) * makespan)):.1f} %")
    micros = len({e["args"]["micro"] for e in ranks[0][0]})
    print(f"idle of equal stages, (p - 1) / (m + p - 1): {100 * (len(ranks) - 1) / (micros + len(ranks) - 1):.1f} %")


if __name__ == "__main__":
    main()
