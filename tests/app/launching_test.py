#!/usr/bin/env python3
"""The launcher as users type it: scripts, programs and cleave's training on this machine, restarts, and launchers under other launchers.
Usage: launching_test.py CLEAVE
"""
import glob
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import unittest

from app_test import CLEAVE
from launched import DEEPSPEED, PLACE, LaunchTest


class Launching(LaunchTest):
    def test_a_job_in_the_background_of_a_shell_takes_sigint(self):
        """A shell without job control lets its background jobs ignore SIGINT; ranks must not inherit that."""
        script = self.dir / "waits.py"
        script.write_text("import time\nprint('here', flush=True)\ntime.sleep(300)\n")
        shell = f"trap '' INT; exec {shlex.quote(CLEAVE)} launch -n 1 -- {sys.executable} {shlex.quote(str(script))}"
        with subprocess.Popen(["bash", "-c", shell], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as job:
            self.assertIn("here", job.stdout.readline())
            job.send_signal(signal.SIGINT)
            said = job.communicate(timeout=60)[0]
        self.assertEqual(job.returncode, 130, said)

    def test_a_rank_that_is_stopped_before_the_ranks_meet_ends_the_job_without_waiting_for_saves(self):
        """Rank 1 begins with a stop pending. The others leave within the time for a failure, far below the 60 s for saving."""
        command = [CLEAVE, "train", "--deepspeed_config", str(self.config()), "--model", "tiny", "--data", str(self.text), "--seq_len", "8",
                   "--steps", "2"]
        script = self.dir / "early.py"
        script.write_text("import os, signal\nif os.environ['RANK'] == '1':\n"
                          "    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])\n"
                          "    os.kill(os.getpid(), signal.SIGTERM)\n"
                          f"os.execv({CLEAVE!r}, {command!r})\n")
        r = self.run_cleave("launch", "-n", "2", "--", sys.executable, script, code=75, timeout=50)
        self.assertEqual((r.stdout + r.stderr).count("stopped on request before the training started"), 1)
        self.assertIn("[1] stopped on request", r.stderr)

    @unittest.skipIf(glob.glob("/dev/nvidia[0-9]*"), "this machine has GPUs, which define the slots")
    def test_a_machine_without_gpus_has_the_named_slots(self):
        for args, ranks in ((["--include", "localhost:0,1"], [0, 1]), (["--include", "localhost:1,3"], [0, 1]), (["--exclude", "localhost:2"], [0, 1]),
                            (["--exclude", "localhost:0"], None), (["--include", "localhost"], [0])):
            r = self.deepspeed(*args, "train.py", code=0 if ranks else 2)
            if ranks:
                self.assertEqual(sorted(self.places(r)), ranks, args)
            else:
                self.assertIn("leaves no slot", r.stderr)

    def test_a_script_starts_as_under_deepspeed(self):
        r = self.deepspeed("--num_gpus", 2, "train.py", "--x", "a b", "--num_gpus", "7")
        ranks = self.places(r)
        self.assertEqual(sorted(ranks), [0, 1])
        for n, rank in ranks.items():
            self.assertEqual(rank["argv"], [f"--local_rank={n}", "--x", "a b", "--num_gpus", "7"])
            env = rank["env"]
            self.assertEqual([env[name] for name in PLACE[:-1]], [str(n), str(n), "2", "2", "2", "0", "0", "1", "127.0.0.1"])
        self.assertEqual(ranks[0]["env"]["MASTER_PORT"], ranks[1]["env"]["MASTER_PORT"])
        self.assertIn("launch: 2 ranks on 1 host: this machine", r.stderr)
        self.assertEqual(self.deepspeed("-q", "train.py").stderr, "")
        self.assertEqual(self.places(self.deepspeed("--no_local_rank", "train.py", "1"))[0]["argv"], ["1"])
        self.assertEqual(self.places(self.deepspeed("--module", "train", "1"))[0]["argv"], ["--local_rank=0", "1"])
        self.assertEqual(self.places(self.deepspeed("--num_g=2", "--master-port", 29511, "train.py"))[1]["env"]["MASTER_PORT"], "29511")

    def test_a_virtual_environment_is_sourced_first(self):
        (self.dir / "activate").write_text("export FROM_VENV='it is'\n")
        self.assertEqual(self.places(self.deepspeed("--venv_script", "activate", "train.py"))[0]["env"]["FROM_VENV"], "it is")
        self.assertIn("--venv_script: nowhere does not exist", self.deepspeed("--venv_script", "nowhere", "train.py", code=2).stderr)

    def test_programs_and_our_own_start_without_python(self):
        self.assertEqual(self.deepspeed("--no_python", "/bin/echo", "x").stdout, "[0] --local_rank=0 x\n")
        self.assertEqual(self.deepspeed("/bin/echo", "x").stdout, "[0] --local_rank=0 x\n")
        for before in [["--num_gpus", "2"], ["--num_gpus", "2", "--no_python"]]:
            r = self.deepspeed(*before, "cleave", "train", "--deepspeed_config", self.config(), "--model", "tiny", "--data", self.text,
                               "--seq_len", 32, "--steps", 2)
            self.assertIn("shared memory, 2 ranks", r.stdout)
        # DeepSpeed's launcher starts a program in this way.
        self.run_cleave("--local_rank=1", "report", env={"LOCAL_RANK": "1"})
        self.assertIn("--local_rank: conflicts with LOCAL_RANK (got 0, but LOCAL_RANK is 1",
                      self.run_cleave("--local_rank=0", "report", env={"LOCAL_RANK": "1"}, code=2).stderr)

    def test_bad_input_is_one_error_and_nothing_starts(self):
        def refused(*args, env=None):
            r = self.deepspeed(*args, code=2, env=env)
            self.assertEqual(r.stderr.count("error: "), 1, r.stderr)
            self.assertEqual(r.stdout, "")
            return r.stderr
        twice = self.dir / "twice"
        twice.write_text("a slots=1\na slots=2\n")
        self.assertIn(f"{twice}:2: duplicate host a, also in line", refused("-H", twice, "train.py"))
        twice.write_text("a\n")
        self.assertIn("has no number of slots", refused("-H", twice, "train.py"))
        self.assertIn("nowhere: the hostfile cannot be read: No such file", refused("-H", "nowhere", "train.py"))
        self.assertIn(": unknown host c", refused("-H", self.hosts, "-i", "c", "train.py"))
        self.assertIn("give one kind", refused("-n", 2, "-H", self.hosts, "train.py"))
        self.assertIn("a hostfile (-H) names more", refused("--num_nodes", 2, "train.py"))
        self.assertIn("gone.py: the script does not exist", refused("gone.py"))
        self.assertIn("'trian': neither a command nor a program in PATH; did you mean train?", refused("--", "trian"))
        self.assertIn("--module: conflicts with --no_python; give one of them", refused("--module", "--no_python", "train.py"))
        self.assertIn("--autotuning: not supported", refused("--autotuning", "run", "train.py"))
        for option in (["--min_elastic_nodes", "1"], ["--max_elastic_nodes", "2"]):
            self.assertIn(f"{option[0]}: is for elastic jobs; add --elastic_training", refused(*option, "train.py"))
        self.assertIn("--num_nodes: MIN:MAX is for elastic jobs (got 1:2)", refused("--num_nodes", "1:2", "train.py"))
        self.assertIn("--num_nodes: expected an integer of at least 1, got 0", refused("--elastic_training", "--num_nodes", "0:2", "train.py"))
        self.assertIn("above --max_elastic_nodes (got 3 and 2)", refused("--elastic_training", "--num_nodes", "3:2", "train.py"))
        self.assertIn("conflicts with -n", refused("--elastic_training", "-n", 2, "train.py"))
        self.assertIn("conflicts with --launcher", refused("--elastic_training", "-H", self.hosts, "--launcher", "slurm", "train.py"))
        self.assertIn("unknown option --num_gps; did you mean --num_gpus?", refused("--num_gps", 2, "train.py"))
        self.assertIn(", expected one of ssh, pdsh", refused("--launcher", "rsh", "train.py"))
        self.assertIn("--node_rank: out of range (got -1; there are 2 hosts", refused("-H", self.hosts, "--no_ssh", "--master_addr", "m", "train.py"))
        self.assertIn("launch: no command; write it after the options", refused("--num_gpus", 2))
        (self.dir / "home" / ".deepspeed_env").write_text("A=1\nB\n")
        self.assertIn(".deepspeed_env:2: 'B' is not a variable (expected NAME=VALUE); correct the line", refused("-H", self.hosts, "train.py"))
        (self.dir / "home" / ".deepspeed_env").chmod(0o666)
        self.assertIn("other users can change the variables of the job", refused("-H", self.hosts, "train.py"))
        with socket.socket() as taken:
            taken.bind(("", 0))
            taken.listen()
            port = taken.getsockname()[1]
            r = self.deepspeed("--master_port", port, "train.py", code=2)
            self.assertIn(f"port {port} cannot be used for the rendezvous: ", r.stderr)

    def test_each_rank_gets_one_of_several_gpu_slices(self):
        for given, want in (("MIG-a,MIG-b", ["MIG-a", "MIG-b", "MIG-a"]), ("MIG-a", ["MIG-a"] * 3), ("GPU-a,GPU-b", ["GPU-a,GPU-b"] * 3)):
            r = self.deepspeed("--num_gpus", 3, "--no_python", "--no_local_rank", "sh", "-c", "echo $RANK $CUDA_VISIBLE_DEVICES",
                               env={"CUDA_VISIBLE_DEVICES": given})
            said = sorted(line.partition("] ")[2] for line in r.stdout.splitlines())
            self.assertEqual(said, [f"{rank} {name}" for rank, name in enumerate(want)])

    def test_a_dry_run_can_be_pasted(self):
        r = self.deepspeed("--num_gpus", 2, "--dry_run", "train.py", "it's $HOME", "`x`", "")
        lines = [line for line in r.stdout.splitlines() if not line.startswith("#")]
        self.assertEqual(len(lines), 2)
        self.assertEqual(self.places(self.deepspeed("train.py"))[0]["argv"], ["--local_rank=0"])
        pasted = subprocess.run(["sh", "-c", lines[1]], cwd=self.dir, env=self.env, capture_output=True, text=True, check=True)
        rank = json.loads(pasted.stdout)
        self.assertEqual(rank["argv"], ["--local_rank=1", "it's $HOME", "`x`", ""])
        self.assertEqual((rank["env"]["RANK"], rank["env"]["CLEAVE_TOKEN"]), ("1", "masked"))

    def test_a_dry_run_shows_no_secret(self):
        arguments = ["train.py", "--hf_token", "hidden", "--api_key=hidden", "db.password=hidden", "s3://u:hidden@h", "--keep", "2"]
        env = {"NCCL_PASS": "hidden", "PYTHON_KEY": "hidden"}
        adopted = {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1", "OMPI_COMM_WORLD_LOCAL_RANK": "0",
                   "OMPI_COMM_WORLD_LOCAL_SIZE": "1"}
        self.hosts.write_text("node-a slots=1\nnode-b slots=2\n")
        for options, more in (([], {}), (["-H", self.hosts], {}), ([], adopted)):
            r = self.deepspeed(*options, "--master_addr", "127.0.0.1", "--dry_run", *arguments, env={**env, **more})
            self.assertNotIn("hidden", r.stdout + r.stderr)
            self.assertIn("--hf_token masked --api_key=masked db.password=masked s3://u:masked@h --keep 2", r.stdout)

    def test_a_pid_is_not_written_through_a_link(self):
        theirs = self.dir / "theirs"
        theirs.write_text("kept")
        link = f'ln -s "{theirs}" /tmp/$$.deepspeed && exec "$@"'  # exec keeps the process id
        r = subprocess.run(["sh", "-c", link, "sh", DEEPSPEED, "--num_gpus", "1", "--save_pid", "train.py"], cwd=self.dir, env=self.env,
                           capture_output=True, text=True, timeout=120)
        self.assertEqual(r.returncode, 0, r.stderr)
        pid = re.search(r"launcher pid: (\d+)", r.stdout)[1]
        self.assertFalse(os.path.lexists(f"/tmp/{pid}.deepspeed"))
        self.assertEqual(theirs.read_text(), "kept")

    def test_ranks_have_separate_files_and_the_launcher_a_pid(self):
        r = self.deepspeed("--num_gpus", 2, "--enable_each_rank_log", "logs", "--save_pid", "--no_python", "/bin/sh", "-c",
                           "echo out; echo err >&2", code=2)  # --local_rank=N comes first and is unknown to sh
        pid = re.search(r"launcher pid: (\d+)", r.stdout)[1]
        self.assertFalse(os.path.exists(f"/tmp/{pid}.deepspeed"))
        logs = sorted(p.name for p in (self.dir / "logs").iterdir())
        self.assertEqual([re.fullmatch(r"\d{14}_rank(\d)\.log", name)[1] for name in logs], ["0", "1"])
        self.assertIn("Illegal option", (self.dir / "logs" / logs[0]).read_text())
        self.assertRegex(r.stderr, r"error: rank \d ended with exit code 2: ")
        self.assertNotIn("[0]", r.stdout)

    def test_failed_jobs_restart(self):
        script = self.dir / "third.py"
        script.write_text("import os, sys\nprint('attempt', os.environ['CLEAVE_ATTEMPT'], flush=True)\n"
                          "sys.exit(0 if os.environ['CLEAVE_ATTEMPT'] == '2' else 1)\n")
        r = self.deepspeed("--max_restarts", 5, "third.py")
        self.assertEqual(re.findall(r"attempt (\d)", r.stdout), ["0", "1", "2"])
        self.assertEqual(r.stderr.count("launch: restart"), 2)
        self.assertEqual(self.deepspeed("--max_restarts", 1, "third.py", code=1).stdout.count("attempt"), 2)
        r = self.several("--max_restarts", 3, "third.py")
        self.assertEqual(r.stdout.count("attempt 2"), 4)
        for code, times in {2: 1, 3: 1, 4: 1, 5: 1, 7: 1, 75: 1, 6: 2, 77: 2}.items():
            script.write_text(f"import sys; print('so often'); sys.exit({code})\n")
            self.assertEqual(self.deepspeed("--max_restarts", 1, "third.py", code=code).stdout.count("so often"), times, code)
        script.write_text("import os; print('so often', flush=True); os.kill(os.getpid(), 9)\n")
        self.assertEqual(self.deepspeed("--max_restarts", 1, "third.py", code=137).stdout.count("so often"), 2)

    def test_a_training_resumes_from_its_newest_checkpoint(self):
        out, metrics = self.dir / "out", self.dir / "metrics.jsonl"
        r = self.deepspeed("--num_gpus", 2, "--max_restarts", 2, "--venv_script", self.dying_once(), "cleave", "train", "--deepspeed_config",
                           self.config(), "--model", "tiny", "--data", self.text, "--seq_len", 32, "--steps", 100, "--save_interval", 10,
                           "--output", out, "--metrics", metrics, timeout=110)
        self.assertIn("launch: restart 1 of 2", r.stderr)
        self.assertIn("resum", r.stdout + r.stderr)
        steps = [json.loads(line).get("step") for line in metrics.read_text().splitlines() if "event" not in line]
        self.assertEqual(steps[-1], 100)

    def dying_once(self):
        """Writes a file that every rank sources: rank 1 of the first attempt is killed when a checkpoint exists."""
        path = self.dir / "dying"
        path.write_text(f'if [ "$CLEAVE_ATTEMPT$RANK" = 01 ]; then\n  (until ls -d "{self.dir}"/out/*10* >/dev/null 2>&1; do sleep 0.02; done; '
                        'kill -9 $$) >/dev/null 2>&1 &\nfi\n')
        return path

    def test_a_launched_launcher_adopts_its_ranks(self):
        rank = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "MASTER_ADDR": "m", "MASTER_PORT": "6105", "AZUREML_NODE_COUNT": "2",
                "AZUREML_PROCESS_NAME": "rank_3", "AZUREML_RUN_ID": "r"}
        r = self.deepspeed("train.py", "x", env=rank)
        self.assertEqual(r.stdout.count("argv"), 1)
        said = json.loads(r.stdout)  # without a prefix, because it is the process itself
        self.assertEqual((said["argv"], said["env"]["RANK"], said["env"]["WORLD_SIZE"]), (["--local_rank=1", "x"], "3", "4"))
        mpi = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "1", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}
        said = json.loads(self.deepspeed("train.py", env=mpi).stdout)
        self.assertEqual([said["env"][n] for n in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR")], ["1", "2", "1", "127.0.0.1"])
        for option, message in [(["--num_gpus", 4], "--num_gpus: conflicts with the launcher (got 4, but"), (["--num_nodes", 3], "--num_nodes: conflicts with the launcher (got 3, but"),
                                (["-i", "a"], "--include, --exclude: have no effect")]:
            self.assertIn(message, self.deepspeed(*option, "train.py", env=rank, code=2).stderr)

    def test_a_launcher_on_each_node_starts_its_ranks(self):
        env = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "10.0.0.4", "MASTER_PORT": "6105", "NODE_RANK": "1",
               "AZUREML_NODE_COUNT": "2", "AZUREML_PROCESS_NAME": "rank_1", "AZUREML_RUN_ID": "r",
               "AZUREML_CR_COMPUTE_CONTEXT": '{"run_attempt_count": 3}'}
        r = self.deepspeed("--num_gpus", 2, "train.py", env=env)
        ranks = self.places(r)
        self.assertEqual({n: (x["env"]["LOCAL_RANK"], x["env"]["WORLD_SIZE"], x["env"]["MASTER_ADDR"], x["env"]["MASTER_PORT"],
                              x["env"]["CLEAVE_JOB_ID"], x["env"]["CLEAVE_ATTEMPT"]) for n, x in ranks.items()},
                         {2: ("0", "4", "10.0.0.4", "6105", "r", "3"), 3: ("1", "4", "10.0.0.4", "6105", "r", "3")})
        self.assertIn(" nodes; this is node 1, with 2", r.stderr)
        tf = {"TF_CONFIG": '{"cluster":{"worker":["h0:2222","h1:2222"],"ps":[]},"task":{"type":"worker","index":1}}'}
        self.assertEqual(sorted(self.places(self.deepspeed("--num_gpus", 2, "train.py", env=tf))), [2, 3])
        bad = {"TF_CONFIG": '{"cluster":{"worker":["h0:2222"],"ps":["h1:2222"]},"task":{"type":"ps","index":0}}'}
        self.assertIn("parameter_server_count", self.deepspeed("train.py", env=bad, code=2).stderr)
        self.assertIn("MASTER_ADDR, MASTER_PORT are missing", self.deepspeed("train.py", env={"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0"}, code=2).stderr)

    def test_report_shows_the_environment(self):
        env = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "MASTER_ADDR": "m", "MASTER_PORT": "6105", "AZUREML_RUN_ID": "r",
               "AZUREML_RUN_TOKEN": "hush", "OTHER": "theirs"}
        r = self.deepspeed("report", "--env", program=CLEAVE, env=env).stdout
        self.assertIn("AZUREML_RUN_ID=r\nAZUREML_RUN_TOKEN=masked, 4 bytes\n", r)
        self.assertIn("a rank:     rank 1 of 2, local rank 1 of 2, node 0 of 1, master m:6105, attempt 0: Azure ML, pytorch", r)
        self.assertIn("a launcher: is a rank and runs the program", r)
        self.assertNotIn("OTHER", r)
        r = json.loads(self.deepspeed("report", "--env", "--json", program=CLEAVE, env={"RANK": "1"}).stdout)
        self.assertIn("error: RANK, WORLD_SIZE", r["rank"])


if __name__ == "__main__":
    unittest.main(verbosity=2)
