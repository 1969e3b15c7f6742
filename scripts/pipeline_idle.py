#!/usr/bin/env python3
"""Computes the idle share of a pipeline's step from the traces of its ranks (`cleave train --trace`).

  pipeline_idle.py trace.0.json trace.1.json [--skip 1] [--merge all.json]

Pass the files of all ranks, or of the ranks of some pipes, in rank order. On several hosts, times are of the first rank's clock.
Data-parallel ranks of the same layers belong to different pipes and never wait for each other. Ranks without activation messages form
no pipe and have no idle share. Prints for each pipe and step:
  idle, measured    1 - computing / (ranks * time from the first computation to the last), wall clock
  idle, replayed    the same for a replay of the instructions without other work: each computation takes the median CPU time of its rank
                    and kind, so other load on the machine does not count
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
    """Returns the pipeline events of each step of a rank. A step, with its update, or a skipped one, ends when the first micro-batch comes
    again."""
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


def pipes_of(ranks):
    """Returns the rank indices of each pipe, first stage first. First stages receive no activations for their first chunk. Stages are the
    outermost axis, so the ranks of a stage are consecutive.
    """
    def is_first(steps):
        return not any(e["name"] == "recv_activation" and e["args"]["chunk"] == 0 for step in steps for e in step)
    pipes = sum(map(is_first, ranks))
    if len(ranks) % pipes or not all(map(is_first, ranks[:pipes])):
        raise SystemExit("the files are not of whole pipes, in the order of their ranks")
    return [list(range(p, len(ranks), pipes)) for p in range(pipes)]


def replay(ranks, cost):
    """Returns the time of the longest rank and the computing time of all, with messages that take no time."""
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
    if min(map(len, ranks)) == 0:
        raise SystemExit("no steps are left: trace more, or lower --skip")
    pipes = pipes_of(ranks)
    for number, members in enumerate(pipes):
        if len(pipes) > 1:
            print(f"ranks {', '.join(map(str, members))}:" if len(members) > 1 else f"rank {members[0]}:")
        report({r: ranks[r] for r in members}, options.skip)


def report(ranks, skip):
    """Prints the steps of the ranks of one pipe, given by its number."""
    times = defaultdict(list)
    for s in range(min(map(len, ranks.values()))):
        work = {r: [e for e in steps[s] if e["name"] in COMPUTE] for r, steps in ranks.items()}
        begin = min(e["ts"] for events in work.values() for e in events)
        end = max(e["ts"] + e["dur"] for events in work.values() for e in events)
        busy = sum(e["dur"] for events in work.values() for e in events)
        share = 100 * (1 - busy / (len(ranks) * (end - begin)))
        print(f"step {s + skip}: {(end - begin) / 1e6:.3f} s" + (f", idle, measured {share:.1f} %" if len(ranks) > 1 else " of forward and backward"))
        for r, events in work.items():
            for e in events:
                times[r, e["name"]].append((e["args"]["cpu_us"], e["dur"]))
    cost = {key: statistics.median(c for c, _ in v) for key, v in times.items()}
    for (r, name), v in sorted(times.items()):
        print(f"rank {r} {name}: median {cost[r, name] / 1e3:.1f} ms of CPU, {statistics.median(d for _, d in v) / 1e3:.1f} ms of wall clock, "
              f"{len(v)} times")
    if len(ranks) == 1:
        return print("one stage: no idle share without a pipeline")
    order = sorted(ranks)
    makespan, busy = replay([ranks[r][0] for r in order], {(order.index(r), name): c for (r, name), c in cost.items()})
    print(f"idle, replayed {100 * (1 - busy / (len(ranks) * makespan)):.1f} %")
    micros = len({e["args"]["micro"] for e in ranks[order[0]][0]})
    print(f"idle of equal stages, (p - 1) / (m + p - 1): {100 * (len(ranks) - 1) / (micros + len(ranks) - 1):.1f} %")


if __name__ == "__main__":
    main()
