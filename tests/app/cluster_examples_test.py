#!/usr/bin/env python3
"""Examples for clusters: Azure ML jobs in their emulator, which is also tested, and jobs for SLURM, torchrun and mpirun with replacements
of
these tools that set their documented variables. Usage: cluster_examples_test.py CLEAVE
"""
import json
import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
import unittest

from app_test import CLEAVE, ROOT
from launched import ToolTest
from mlflow_stand_in import StandIn
from pages import LAUNCHERS, blocks

BIN = pathlib.Path(CLEAVE).parent
AZURE = ROOT / "examples" / "azureml"
KUBERNETES = ROOT / "examples" / "kubernetes"
MOUNT = BIN / "azureml_mount.so"
PYTHON = sys.executable
try:
    import yaml
except ImportError as e:
    print(f"skipped: {e}; install python3-yaml", file=sys.stderr)
    sys.exit(77)

# Replaces srun, torchrun and mpirun: starts two ranks and forwards its signals to them, as SLURM does to a step.
STARTER = """#!/usr/bin/env python3
import os, signal, subprocess, sys
at = next(i for i, word in enumerate(sys.argv) if word == os.environ["CLEAVE"])
variables = {variables!r}
port = os.environ["TEST_PORT"]
ranks = [subprocess.Popen(sys.argv[at:], env={{**os.environ, **{{k: v.format(r=r, port=port) for k, v in variables.items()}}}})
         for r in range(2)]
for s in (signal.SIGUSR1, signal.SIGTERM):
    signal.signal(s, lambda number, frame: [rank.send_signal(number) for rank in ranks])
open("called", "a").write(" ".join(sys.argv[1:at]) + "\\n")
sys.exit(max(rank.wait() for rank in ranks))
"""


class ClusterExamples(ToolTest):
    def setUp(self):
        super().setUp()
        for name, (_, variables) in LAUNCHERS.items():
            self.tool(name, STARTER.format(variables=variables))
        self.env |= {"CLEAVE": CLEAVE, "TEST_PORT": str(30000 + os.getpid() % 2000)}
        (self.dir / "corpus.txt").write_text(self.text.read_text())

    # Azure ML

    def emulate(self, job, *options, code=0, inputs=()):
        file = self.dir / "job.yml"
        file.write_text(job if isinstance(job, str) else json.dumps(job))  # JSON is also YAML
        r = subprocess.run([PYTHON, AZURE / "emulate.py", file, "--work", self.dir / "work", "--tools", BIN, "--mount", MOUNT, "--verbose",
                            *(f"--input={name}={path}" for name, path in inputs), *map(str, options)], capture_output=True, text=True,
                           timeout=120)
        self.assertEqual(r.returncode, code, f"{r.stdout}\n{r.stderr}")
        return r

    def seen(self, distribution, nodes, **job):
        """Returns the variables that a job's command sees, by process."""
        r = self.emulate({"command": "env; pwd", "environment": "azureml:x:1", "resources": {"instance_count": nodes},
                          "distribution": distribution, **job})
        found = {}
        for number, name, value in re.findall(r"^\[(\d+)\] (\w+)=(.*)$", r.stdout, re.MULTILINE):
            found.setdefault(int(number), {})[name] = value
        return found

    def test_the_jobs_print_the_output_of_their_page(self):
        work = self.dir / "azure ml"
        (work / "text").mkdir(parents=True)
        text = self.text.read_text()
        (work / "text" / "kjv.txt").write_text("\n".join(text[i:i + 70] for i in range(0, len(text), 70)))
        r = subprocess.run([AZURE / "run.sh", work], env={**os.environ, "TOOLS": str(BIN)}, capture_output=True, text=True, timeout=300)
        self.assertEqual(r.returncode, 0, r.stdout + r.stderr)

        def same(text):  # a slow machine may lose the node a checkpoint later
            return re.sub(r"(step ?|steps )\d+", r"\1N", re.sub(r"\d\.\de[-+]\d\d", "small", text)).strip()
        shown = "".join(blocks(AZURE / "README.md", "text"))
        self.assertEqual(same(r.stdout), same(shown))

    def test_pytorch_gives_a_place_to_each_process(self):
        seen = self.seen({"type": "pytorch", "process_count_per_instance": 2}, 2)
        self.assertEqual(len(seen), 4)
        for rank, (node, local) in enumerate([(0, 0), (0, 1), (1, 0), (1, 1)]):
            env = seen[rank]
            got = [env[name] for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "NODE_RANK", "AZUREML_NODE_COUNT", "AZUREML_PROCESS_NAME")]
            self.assertEqual(got, [str(rank), "4", str(local), str(node), "2", f"rank_{rank}"])
            self.assertEqual((env["MASTER_ADDR"], env["MASTER_PORT"]), (seen[0]["MASTER_ADDR"], seen[0]["MASTER_PORT"]))
            self.assertEqual([name for name in env if name in ("LOCAL_WORLD_SIZE", "TF_CONFIG") or name.startswith("OMPI")], [])
        self.assertEqual(sorted(self.seen({"type": "pytorch"}, 3)), [0, 1, 2])
        self.assertEqual(self.seen({"type": "pytorch"}, 1)[0]["AZUREML_PROCESS_NAME"], "main")

    def test_mpi_names_the_master_as_azure_batch_does(self):
        seen = self.seen({"type": "mpi", "process_count_per_instance": 2}, 2)
        for rank, local in enumerate([0, 1, 0, 1]):
            env = seen[rank]
            self.assertEqual([env[f"OMPI_COMM_WORLD_{name}"] for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")],
                             [str(rank), "4", str(local), "2"])
            self.assertEqual(env["AZ_BATCH_MASTER_NODE"], "127.0.0.1:6000")
            self.assertNotIn("RANK", env)
            self.assertNotIn("MASTER_ADDR", env)
        alone = self.seen({"type": "mpi", "process_count_per_instance": 2}, 1)[1]
        self.assertEqual(alone["AZ_BATCHAI_MPI_MASTER_NODE"], "localhost")
        self.assertNotIn("AZ_BATCH_MASTER_NODE", alone)

    def test_tensorflow_has_tf_config_alone(self):
        seen = self.seen({"type": "tensorflow", "worker_count": 2, "parameter_server_count": 1}, 3)
        hosts = ["127.0.0.1:2222", "127.0.0.1:2223", "127.0.0.1:2224"]
        for number, task in enumerate([("worker", 0), ("worker", 1), ("ps", 0)]):
            self.assertNotIn("RANK", seen[number])
            self.assertEqual(json.loads(seen[number]["TF_CONFIG"]), {
                "cluster": {"worker": hosts[:2], "ps": hosts[2:]}, "task": {"type": task[0], "index": task[1]}, "environment": "cloud"})

    def test_a_parameter_server_is_an_error_with_the_reason(self):
        r = self.emulate({"command": "deepspeed --no_python true", "environment": "azureml:x:1", "resources": {"instance_count": 2},
                          "distribution": {"type": "tensorflow", "worker_count": 1, "parameter_server_count": 1}}, code=2)
        self.assertIn("set parameter_server_count to 0", r.stdout)

    def test_nodes_share_nothing_but_the_output(self):
        code = self.dir / "code"
        code.mkdir()
        (code / "here").write_text("x")
        (self.dir / "in").mkdir()
        (self.dir / "in" / "text").write_text("read me")
        command = "cat here ${{inputs.a}}/text; touch mine.$RANK; ls; pwd; echo $AZURE_ML_OUTPUT_o > ${{outputs.o}}/$RANK; echo no > ${{inputs.a}}/new"
        job = {"command": command, "code": "code", "environment": "azureml:x:1", "resources": {"instance_count": 2},
               "distribution": {"type": "pytorch"}, "inputs": {"a": {"type": "uri_folder", "path": "azureml:a:1"}},
               "outputs": {"o": {"type": "uri_folder", "path": "azureml://datastores/store/paths/fixed"}}}
        r = self.emulate(job, code=1, inputs=[("a", self.dir / "in")])
        self.assertIn("Read-only file system", r.stdout)
        self.assertEqual([p.name for p in (self.dir / "in").iterdir()], ["text"])
        output = self.dir / "work/datastores/store/fixed"
        self.assertEqual({p.name: p.read_text().strip() for p in output.iterdir()}, {"0": str(output), "1": str(output)})
        for node in "01":
            names = {p.name for p in (self.dir / f"work/start0/node{node}/wd").iterdir()}
            self.assertEqual(names, {"here", f"mine.{node}", "logs", "outputs"})

    def test_a_job_reports_to_its_run_on_a_tracking_server(self):
        command = shlex.join(["cleave", "train", "--deepspeed_config", str(self.config()), "--model", "tiny", "--data", str(self.dir / "corpus.txt"),
                              "--seq_len", "32", "--steps", "3", "--report_to", "mlflow"])
        job = {"command": command, "environment": "azureml:x:1", "resources": {"instance_count": 2}, "distribution": {"type": "pytorch"}}
        with StandIn() as server:
            self.emulate(job, "--mlflow", server.url)
            (run,) = server.runs.values()
        self.assertEqual(run["info"]["status"], "FINISHED")
        self.assertEqual([m["step"] for m in run["data"]["metrics"] if m["key"] == "loss"], [1, 2, 3])

    def test_the_output_has_the_limits_of_the_mount(self):
        script = self.dir / "try.py"
        script.write_text("""import errno, fcntl, os, sys
os.chdir(sys.argv[1])
def name(call):
    try:
        call()
        return "done"
    except OSError as error:
        return errno.errorcode[error.errno]
open("file", "w").write("x")
os.mkdir("folder")
print(name(lambda: open("new", "a")), name(lambda: os.open("file", os.O_WRONLY)), name(lambda: open("file", "r+")),
      name(lambda: os.rename("folder", "other")), name(lambda: os.link("file", "l")), name(lambda: os.symlink("file", "s")),
      name(lambda: fcntl.flock(open("file"), fcntl.LOCK_EX)), name(lambda: fcntl.lockf(open("free", "w"), fcntl.LOCK_EX)))
print(name(lambda: open("file", "w").write("y")), name(lambda: os.rename("file", "moved")), open("moved").read(), name(lambda: os.unlink("moved")))
""")
        for place, want in (("mount", "ENOTSUP ENOTSUP ENOTSUP EPERM EPERM EPERM ENOTSUP ENOTSUP"), ("disk", "done " * 8)):
            (self.dir / place).mkdir()
            r = subprocess.run([PYTHON, script, self.dir / place], capture_output=True, text=True, check=True,
                               env={**os.environ, "LD_PRELOAD": str(MOUNT), "EMULATED_OUTPUTS": str(self.dir / "mount")})
            self.assertEqual(r.stdout.splitlines(), [want.strip(), "done done y done"])

    def test_invalid_job_files_are_errors_with_the_reason(self):
        job = {"command": "true", "environment": "azureml:x:1"}
        for change, said in [({"distribution": {"type": "deepspeed"}}, "type deepspeed is not emulated"),
                             ({"distribution": {"type": "mpi"}}, "needs process_count_per_instance"),
                             ({"distribution": {"type": "pytorch", "worker_count": 2}}, "worker_count is not a field of type pytorch"),
                             ({"inputs": {"a": {}}}, "--input a=FOLDER"), ({"command": "${{inputs.b}}"}, "inputs.b"),
                             ({"outputs": {"o": {"path": "azureml://datastores/s/paths/../../x"}}}, "is not azureml://"),
                             ({"resources": {"instance_count": 2}}, "need a distribution")]:
            self.assertIn(said, self.emulate({**job, **change}, code=2).stderr)
        self.assertIn("command is missing", self.emulate({"environment": "azureml:x:1"}, code=2).stderr)
        self.assertIn("ended with exit code 7", self.emulate({**job, "command": "exit 7"}, code=7).stdout)

    def test_job_files_use_only_keys_of_the_schema(self):
        keys = {"$schema", "experiment_name", "code", "command", "inputs", "outputs", "environment", "compute", "distribution", "resources",
                "services", "limits"}
        files = sorted(AZURE.glob("*.yml"))
        self.assertEqual(len(files), 5)
        for file in files:
            job = yaml.safe_load(file.read_text())
            self.assertEqual(set(job) - keys, set(), file)
            self.assertTrue(all(o["mode"] == "rw_mount" for o in job["outputs"].values()))
            build = job["environment"]["build"]
            self.assertTrue((AZURE / build["path"] / build["dockerfile_path"]).is_file())

    def test_the_image_is_built_by_existing_commands(self):
        text = (AZURE / "Dockerfile").read_text()
        self.assertTrue((ROOT / re.search(r"\./(scripts/\w+\.sh) build", text)[1]).is_file())
        options = re.findall(r"-D(CLEAVE_\w+)=", text)
        self.assertEqual(len(options), 3)
        for option in options:
            self.assertIn(f"option({option} ", (ROOT / "CMakeLists.txt").read_text())

    def test_the_environment_of_a_release_builds_the_image_beside_it_from_a_wheel(self):
        folder = ROOT / "scripts/container"
        environment = yaml.safe_load((folder / "environment.yml").read_text())
        self.assertEqual(set(environment) - {"$schema", "name", "description", "build"}, set())
        self.assertEqual(environment["build"], {"path": ".", "dockerfile_path": "Dockerfile"})
        copied = re.findall(r"^COPY (\S+)", (folder / environment["build"]["dockerfile_path"]).read_text(), re.MULTILINE)
        self.assertEqual(copied, ["cleave-*.whl"])

    # Kubernetes

    def pods(self):
        """Returns command and environment of each pod, as Kubeflow Trainer's torch runtime and JobSet set them."""
        runtime, job = (yaml.safe_load((KUBERNETES / name).read_text()) for name in ("runtime.yaml", "train_job.yaml"))
        trainer, spec = job["spec"]["trainer"], runtime["spec"]["template"]["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
        self.assertEqual(job["spec"]["runtimeRef"]["name"], runtime["metadata"]["name"])
        container, = spec["containers"]
        self.assertEqual({v["name"] for v in container["volumeMounts"]}, {v["name"] for v in spec["volumes"]})
        labels = {"jobset.sigs.k8s.io/jobset-name": job["metadata"]["name"], "jobset.sigs.k8s.io/restart-attempt": "0"}
        own = {}
        for variable in container["env"]:
            if "secretKeyRef" in variable["valueFrom"]:
                own[variable["name"]] = "secret"
            else:
                label, = re.fullmatch(r"metadata\.labels\['(.*)'\]", variable["valueFrom"]["fieldRef"]["fieldPath"]).groups()
                own[variable["name"]] = labels[label]
        for pod in range(trainer["numNodes"]):
            yield trainer["command"] + trainer["args"], own | {
                "PET_NNODES": str(trainer["numNodes"]), "PET_NPROC_PER_NODE": str(trainer["numProcPerNode"]), "PET_NODE_RANK": str(pod),
                "PET_MASTER_ADDR": "127.0.0.1", "PET_MASTER_PORT": self.env["TEST_PORT"]}

    def test_the_pods_of_a_train_job_train(self):
        config, run = self.config(), self.dir / "run"
        places = {"/data/ds_config.json": config, "/data/kjv.txt": self.dir / "corpus.txt", "/runs/first": run, "llama-tiny": "tiny"}
        started = []
        for command, variables in self.pods():
            for place, here in places.items():
                command = [word.replace(place, str(here)) for word in command]
            started.append(subprocess.Popen(command, env={**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1", **variables},
                                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
        said = [pod.communicate(timeout=100)[0] for pod in started]
        self.assertEqual([pod.returncode for pod in started], [0, 0], said)
        self.assertIn("Kubeflow TrainJob started one launcher on each of 2 nodes", "".join(said))
        self.assertIn("4 ranks on 2 hosts", "".join(said))
        self.assertEqual((run / "latest").read_text().strip(), "global_step30")

    def test_the_files_for_kubernetes_have_only_fields_of_kubeflow_trainer(self):
        try:
            from kubeflow_trainer_api import models
        except ImportError:
            self.skipTest("kubeflow-trainer-api is not installed")
        for name, model in (("runtime.yaml", models.TrainerV1alpha1TrainingRuntime), ("train_job.yaml", models.TrainerV1alpha1TrainJob)):
            given = yaml.safe_load((KUBERNETES / name).read_text())
            read = json.loads(model.from_dict(given).to_json())
            self.assertEqual(read, given, name)

    # SLURM, torchrun and mpirun

    def steps(self, file):
        return [s["step"] for s in map(json.loads, (self.dir / file).read_text().splitlines()) if "loss" in s]

    def test_a_slurm_job_saves_before_its_time_limit_and_resumes(self):
        self.tool("scontrol", '#!/bin/sh\necho "$@" >> requeued\n')
        script = ROOT / "examples/slurm/train.sbatch"
        options = dict(re.findall(r"^#SBATCH --([\w-]+)=?(.*)$", script.read_text(), re.MULTILINE))
        self.assertEqual((options["requeue"], options["signal"]), ("", "USR1@300"))
        env = {**self.env, "SLURM_JOB_ID": "4711", "SLURM_STEP_ID": "0", "DS_CONFIG": str(self.config()), "DATA": "corpus.txt",
               "OUTPUT": "run", "SEQ_LEN": "32", "STEPS": "100000"}
        job = subprocess.Popen(["bash", script], cwd=self.dir, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                               start_new_session=True)
        until = time.monotonic() + 300
        while not (self.dir / "run.jsonl").exists() or len(self.steps("run.jsonl")) < 3:
            self.assertIsNone(job.poll(), job.stdout.read() if job.poll() is not None else "")
            self.assertLess(time.monotonic(), until)
            time.sleep(0.05)
        step = subprocess.run(["pgrep", "-P", str(job.pid)], capture_output=True, text=True).stdout.split()
        self.assertEqual(len(step), 1)
        os.kill(int(step[0]), signal.SIGUSR1)
        out, _ = job.communicate(timeout=60)
        self.assertEqual(job.returncode, 0, out)
        self.assertEqual((self.dir / "requeued").read_text(), "requeue 4711\n")
        saved = int(re.search(r"global_step(\d+)", (self.dir / "run" / "latest").read_text())[1])
        # The next start ends with the last step and is not requeued.
        again = subprocess.run(["bash", script], cwd=self.dir, capture_output=True, text=True, timeout=60,
                               env={**env, "SLURM_RESTART_COUNT": "1", "STEPS": str(saved + 2)})
        self.assertEqual(again.returncode, 0, again.stdout + again.stderr)
        self.assertIn(f"at step {saved}", again.stdout)
        self.assertEqual(self.steps("run.jsonl")[-2:], [saved + 1, saved + 2])
        self.assertEqual((self.dir / "requeued").read_text(), "requeue 4711\n")
        # Other failures are not requeued.
        wrong = subprocess.run(["bash", script], cwd=self.dir, capture_output=True, text=True, timeout=60, env={**env, "DATA": "gone"})
        self.assertEqual(wrong.returncode, 7)
        self.assertEqual((self.dir / "requeued").read_text(), "requeue 4711\n")

    def run_page(self, name):
        """Runs the command on an example's page."""
        command, = blocks(ROOT / f"examples/{name}/README.md", "sh")
        (self.dir / "examples").symlink_to(ROOT / "examples")
        r = subprocess.run(["bash", "-euo", "pipefail", "-c", command.replace("--steps 30", "--steps 4")], cwd=self.dir, env=self.env,
                           capture_output=True, text=True, timeout=60)
        self.assertEqual(r.returncode, 0, r.stdout + r.stderr)
        self.assertIn("2 ranks", r.stdout + r.stderr)
        called = self.dir / "called"
        return called.read_text() if called.exists() else ""

    def test_torchrun_starts_ranks(self):
        called = self.run_page("torchrun")
        self.assertIn("--no-python --nnodes 1 --nproc_per_node 2 --max_restarts 3", called)
        self.assertTrue((self.dir / "run" / "latest").exists())

    def test_mpirun_starts_ranks(self):
        self.assertEqual(self.run_page("mpi"), "-n 2 --bind-to none\n")
        self.env |= {"MASTER_ADDR": "127.0.0.1", "HOSTFILE": "hosts"}
        (self.dir / "examples").unlink()
        self.assertIn("--bind-to none --hostfile hosts -x MASTER_ADDR\n", self.run_page("mpi"))

    def test_installed_tools_start_ranks_like_their_replacements(self):
        found = [name for name in ("torchrun", "mpirun")
                 if shutil.which(name) and subprocess.run([name, "--help"], capture_output=True).returncode == 0]
        if not found:
            self.skipTest("neither torchrun nor mpirun is installed")
        self.env |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "PORT": self.env["TEST_PORT"]}
        for name in found:
            (self.tools / name).unlink()
            self.run_page({"torchrun": "torchrun", "mpirun": "mpi"}[name])
            (self.dir / "examples").unlink()


if __name__ == "__main__":
    if not MOUNT.exists():
        print(f"skipped: {MOUNT} was not built")
        sys.exit(77)
    unittest.main(verbosity=2)
