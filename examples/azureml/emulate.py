#!/usr/bin/env python3
"""Runs an Azure ML job file on this machine in the way Azure ML does.

Each process of the distribution starts with its variables, in a copy of the code per node, with read-only inputs and an output mount
without append, locks, links and renames of folders (mount.cpp). Nodes are this machine under several names; their ranks communicate
by TCP.

  emulate.py JOB.yml --work FOLDER --input NAME=FOLDER ... [--tools FOLDER] [--mount LIBRARY] [--lose_node N --behind_checkpoints K]

With --mlflow URL, the job has a run on that tracking server, as a job has one in its workspace.

A lost node is killed without a signal to its processes. The job then starts again in new folders, with the same command, run id and
outputs, as on low-priority nodes. Exit code: that of the first failed process; 2 for an unsupported job file.
"""
import argparse
import json
import os
import pathlib
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request

import yaml

MASTER = "127.0.0.1"
GRACE = 20  # seconds for the other processes to exit by themselves after a failure


class Wrong(Exception):
    pass


def free_port():
    with socket.socket() as s:
        s.bind(("", 0))
        return s.getsockname()[1]


def is_free(port):
    with socket.socket() as s:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            s.bind(("", port))
        except OSError:
            return False
        return True


def placed(job):
    """Returns node, local index and variables of the distribution for each process."""
    nodes = job.get("resources", {}).get("instance_count", 1)
    distribution = {**job.get("distribution", {"type": None})}
    kind = distribution.pop("type")
    known = {None: [], "pytorch": ["process_count_per_instance"], "mpi": ["process_count_per_instance"],
             "tensorflow": ["worker_count", "parameter_server_count"]}
    if kind not in known:
        raise Wrong(f"distribution: type {kind} is not emulated; pytorch, mpi and tensorflow are")
    if wrong := set(distribution) - set(known[kind]):
        raise Wrong(f"distribution: {', '.join(sorted(wrong))} is not a field of type {kind}")
    if kind == "mpi" and "process_count_per_instance" not in distribution:
        raise Wrong("distribution: type mpi needs process_count_per_instance")
    if kind is None and nodes > 1:
        raise Wrong("several nodes need a distribution")
    if kind == "tensorflow":
        return tensorflow(nodes, distribution.get("worker_count", nodes), distribution.get("parameter_server_count", 0))
    each = distribution.get("process_count_per_instance", 1)
    world, port = nodes * each, free_port()
    found = []
    for rank in range(world):
        node, local = divmod(rank, each)
        name = {"AZUREML_PROCESS_NAME": f"rank_{rank}" if world > 1 else "main"}
        if kind == "pytorch":
            name |= {"MASTER_ADDR": MASTER, "MASTER_PORT": port, "WORLD_SIZE": world, "RANK": rank, "LOCAL_RANK": local, "NODE_RANK": node}
        elif kind == "mpi":
            # Despite its name, OMPI_COMM_WORLD_NODE_RANK is the rank within the node.
            name |= {"OMPI_COMM_WORLD_RANK": rank, "OMPI_COMM_WORLD_SIZE": world, "OMPI_COMM_WORLD_LOCAL_RANK": local,
                     "OMPI_COMM_WORLD_LOCAL_SIZE": each, "OMPI_COMM_WORLD_NODE_RANK": local}
            # Azure Batch uses the port in this variable. Ranks meet at 6105, or at 54965 on one node; the emulation does not handle another
            # job that uses these ports on this machine.
            name |= {"AZ_BATCH_MASTER_NODE": f"{MASTER}:6000"} if nodes > 1 else {"AZ_BATCHAI_MPI_MASTER_NODE": "localhost"}
            name |= {} if is_free(6105 if nodes > 1 else 54965) else {"MASTER_PORT": port}
        found.append((node, local, name))
    return found


def tensorflow(nodes, workers, servers):
    if workers + servers > nodes:
        raise Wrong(f"{workers} workers and {servers} parameter servers want a node each, and instance_count is {nodes}")
    hosts = [f"{MASTER}:{2222 + n}" for n in range(workers + servers)]
    cluster = {"worker": hosts[:workers], "ps": hosts[workers:]}
    found = []
    for n in range(workers + servers):
        task = {"type": "worker", "index": n} if n < workers else {"type": "ps", "index": n - workers}
        name = {"TF_CONFIG": json.dumps({"cluster": cluster, "task": task, "environment": "cloud"}), "AZUREML_PROCESS_NAME": f"rank_{n}"}
        found.append((n, 0, name if is_free(6105) else {**name, "MASTER_PORT": 6105 + os.getpid() % 1000 + 1}))
    return found


class Job:
    def __init__(self, options):
        self.file = options.job
        try:
            self.job = yaml.safe_load(self.file.read_text())
        except (OSError, yaml.YAMLError) as error:
            raise Wrong(error) from None
        if not isinstance(self.job, dict):
            raise Wrong(f"{self.file} is not a job")
        for key in ("command", "environment"):
            if key not in self.job:
                raise Wrong(f"{self.file}: {key} is missing, which a job must have")
        self.options = options
        self.work = options.work.resolve()
        self.nodes = self.job.get("resources", {}).get("instance_count", 1)
        self.run_id = f"cleave_{self.file.stem}_{os.getpid()}"
        self.tracking = self.new_run() if options.mlflow else {}
        self.given = dict(text.split("=", 1) for text in options.input)
        self.outputs = {name: self.output(name, value) for name, value in self.job.get("outputs", {}).items()}
        for name in self.job.get("inputs", {}):
            if name not in self.given:
                raise Wrong(f"input {name} is missing: --input {name}=FOLDER")

    def mlflow(self, call, **values):
        request = urllib.request.Request(f"{self.options.mlflow}/api/2.0/mlflow/{call}", json.dumps(values).encode(),
                                         {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                return json.load(answer)
        except (OSError, ValueError) as error:
            raise Wrong(f"--mlflow {self.options.mlflow}: {error}") from None

    def new_run(self):
        """Creates the job's run; returns the variables by which its processes find it."""
        run = self.mlflow("runs/create", experiment_id="0", run_name=self.file.stem, start_time=int(time.time() * 1000))["run"]["info"]
        return {"MLFLOW_TRACKING_URI": self.options.mlflow, "MLFLOW_EXPERIMENT_ID": run["experiment_id"], "MLFLOW_RUN_ID": run["run_id"]}

    def end_run(self, code):
        if self.tracking:
            self.mlflow("runs/update", run_id=self.tracking["MLFLOW_RUN_ID"], status="FAILED" if code else "FINISHED",
                        end_time=int(time.time() * 1000))

    def output(self, name, value):
        """Returns the storage folder of the mount. A fixed path keeps its folder over restarts."""
        if value.get("mode", "rw_mount") != "rw_mount":
            raise Wrong(f"output {name}: mode {value['mode']} is not emulated; rw_mount is")
        path = value.get("path", f"azureml://datastores/workspaceblobstore/paths/azureml/{self.run_id}/{name}")
        parts = re.fullmatch(r"azureml://datastores/([\w-]+)/paths/([\w./-]+)", path)
        if not parts or ".." in parts[2]:
            raise Wrong(f"output {name}: {path} is not azureml://datastores/NAME/paths/FOLDER")
        folder = self.work / "datastores" / parts[1] / parts[2]
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def inputs_of(self, node):
        """Returns the input folders: mounted inputs are shared, downloaded inputs are copied to each node."""
        found = {}
        for name, value in self.job.get("inputs", {}).items():
            found[name] = pathlib.Path(self.given[name]).resolve()
            if value.get("mode", "ro_mount") == "download":
                copy = node / "inputs" / name
                shutil.copytree(found[name], copy)
                found[name] = copy
        return found

    def start(self, attempt):
        processes, folders, inputs = [], {}, {}
        for number, (node, local, variables) in enumerate(placed(self.job)):
            if node not in folders:
                folders[node] = self.work / f"start{attempt}" / f"node{node}"
                wd = folders[node] / "wd"
                code = self.job.get("code")
                shutil.copytree(self.file.parent / code, wd) if code else wd.mkdir(parents=True)
                for name in ("logs", "outputs"):
                    (wd / name).mkdir(exist_ok=True)
                inputs[node] = self.inputs_of(folders[node])
            paths = {f"inputs.{name}": path for name, path in inputs[node].items()}
            paths |= {f"outputs.{name}": path for name, path in self.outputs.items()}
            command = re.sub(r"\$\{\{\s*([\w.]+)\s*\}\}", lambda m: shlex.quote(str(self.path(paths, m[1]))), self.job["command"])
            env = {"PATH": f"{self.options.tools}:{os.environ['PATH']}", "HOME": str(folders[node]),
                   "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
                   # Python packages are part of the image in Azure ML.
                   **{k: os.environ[k] for k in ("PYTHONPATH", "CLEAVE_LIBRARY") if k in os.environ},
                   "AZUREML_RUN_ID": self.run_id, "AZUREML_EXPERIMENT_ID": "00000000-0000-0000-0000-000000000001",
                   "AZUREML_RUN_TOKEN": "a-secret-of-the-job", "AZUREML_NODE_COUNT": self.nodes, "AZUREML_CR_NODE_RANK": node,
                   "AZUREML_CR_COMPUTE_CONTEXT": json.dumps({"run_attempt_count": attempt}),
                   # Emulation only: separate hosts, mounts, and the processes of a node to kill.
                   "CLEAVE_TEST_HOST": f"node{node}-start{attempt}", "EMULATED_NODE": self.mark(attempt, node),
                   "EMULATED_OUTPUTS": ":".join(map(str, self.outputs.values())),
                   "EMULATED_INPUTS": ":".join(map(str, inputs[node].values())), "LD_PRELOAD": self.options.mount}
            if self.nodes > 1:
                env["AZ_BATCH_HOST_LIST"] = ",".join([MASTER] * self.nodes)
            env |= {f"AZURE_ML_INPUT_{name}": path for name, path in inputs[node].items()}
            env |= {f"AZURE_ML_OUTPUT_{name}": path for name, path in self.outputs.items()}
            env |= {**self.tracking, **self.job.get("environment_variables", {}), **variables}
            logs = folders[node] / "user_logs"
            logs.mkdir(exist_ok=True)
            log = logs / f"std_log_process_{number}.txt"
            with log.open("wb") as out:
                processes.append((number, node, log, subprocess.Popen(
                    ["bash", "-c", command], cwd=folders[node] / "wd", env={k: str(v) for k, v in env.items()},
                    stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, start_new_session=True)))
        return processes

    def path(self, paths, name):
        if name not in paths:
            raise Wrong(f"the command names {name}, which the job does not have")
        return paths[name]

    def mark(self, attempt, node):
        return f"{self.run_id}/{attempt}/{node}/"

    def end_node(self, attempt, node):
        """Kills all processes of the node in any session."""
        mark = f"EMULATED_NODE={self.mark(attempt, node)}".encode()
        for path in pathlib.Path("/proc").glob("[0-9]*/environ"):
            try:
                if mark in path.read_bytes().split(b"\0"):
                    os.kill(int(path.parent.name), signal.SIGKILL)
            except OSError:
                pass

    def checkpoints(self):
        return sum(1 for folder in self.outputs.values() for _ in folder.glob("*/manifest.json"))

    def run(self, attempt):
        """Returns the exit code, or None if a node was lost."""
        processes = self.start(attempt)
        by_node = [sum(node == n for _, node, _, _ in processes) for n in range(self.nodes)]
        print(f"{self.file.name}, start {attempt + 1}: {' + '.join(map(str, by_node))} processes on {self.nodes} nodes", flush=True)
        lose = self.options.lose_node if attempt == 0 else None
        failed, until = None, None
        try:
            while running := [p for p in processes if p[3].poll() is None]:
                if lose is not None and failed is None and self.checkpoints() >= self.options.behind_checkpoints:
                    self.end_node(attempt, lose)
                    print(f"node {lose} is lost", flush=True)
                    failed, until = "lost", time.monotonic() + GRACE
                if failed is None and (bad := [p for p in processes if p[3].poll()]):
                    failed, until = bad[0], time.monotonic() + GRACE
                if until and time.monotonic() > until:
                    break
                time.sleep(0.02)
            if failed is None:
                failed = next((p for p in processes if p[3].poll()), None)
        finally:
            for node in range(self.nodes):
                self.end_node(attempt, node)
            for *_, process in processes:
                process.wait()
        if running:
            print(f"processes {', '.join(str(p[0]) for p in running)} did not leave in {GRACE} s and were ended")
        if failed == "lost":
            return None
        if failed:
            number, _, log, process = failed
            print(f"process {number} ended with exit code {process.returncode}:")
            print("".join(log.read_text(errors="replace").splitlines(True)[-8:]), end="", flush=True)
            return process.returncode if process.returncode > 0 else 128 - process.returncode
        if self.options.verbose:
            for number, _, log, _ in processes:
                print("".join(f"[{number}] {line}" for line in log.read_text(errors="replace").splitlines(True)), end="")
        return 0


def main():
    here = pathlib.Path(__file__).resolve().parent
    build = here.parent.parent / "build" / "release" / "bin"
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("job", type=pathlib.Path)
    parser.add_argument("--work", type=pathlib.Path, required=True, help="folder for nodes and datastores; datastores persist")
    parser.add_argument("--input", action="append", default=[], metavar="NAME=FOLDER", help="folder of an input of the job")
    parser.add_argument("--tools", default=build, help="folder of cleave and deepspeed")
    parser.add_argument("--mount", default=build / "azureml_mount.so", help="mount.cpp, built")
    parser.add_argument("--mlflow", metavar="URL", help="MLflow tracking server with the runs of jobs, such as http://127.0.0.1:5000")
    parser.add_argument("--lose_node", type=int, help="node to take away")
    parser.add_argument("--behind_checkpoints", type=int, default=1, help="number of checkpoints in the outputs before the loss")
    parser.add_argument("--verbose", action="store_true", help="print the output of all processes")
    options = parser.parse_args()
    try:
        options.mount = pathlib.Path(options.mount).resolve(strict=True)
        if re.search("[ :]", str(options.mount)):
            raise Wrong(f"--mount {options.mount}: LD_PRELOAD takes no path with a blank or a colon")
        job = Job(options)
        if options.lose_node is not None and not 0 <= options.lose_node < job.nodes:
            raise Wrong(f"node {options.lose_node} is none of {job.nodes}")
        for old in job.work.glob("start[0-9]"):
            shutil.rmtree(old)
        code = job.run(0)
        code = job.run(1) if code is None else code
        job.end_run(code)
        return code
    except (Wrong, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
