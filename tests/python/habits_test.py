"""Common actions around a training script, and how users start and stop it."""

import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time
import unittest

import ranks

CASES = "habits_cases"
MPIRUN = {"OMPI_COMM_WORLD_RANK": "{rank}", "OMPI_COMM_WORLD_SIZE": "2"}
MPIRUN |= {"OMPI_COMM_WORLD_LOCAL_RANK": "{rank}", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}
SRUN = {"SLURM_PROCID": "{rank}", "SLURM_LOCALID": "{rank}", "SLURM_NODEID": "0", "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NUM_NODES": "1"}
SRUN |= {"SLURM_STEP_ID": "0", "SLURM_JOB_ID": "7", "SLURM_STEP_TASKS_PER_NODE": "2", "SLURM_STEP_NODELIST": "localhost"}


def marked(mark: str) -> list[str]:
    """Returns the processes with this text in a variable."""
    found = []
    for path in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (path / "environ").read_bytes():
                found.append((path / "cmdline").read_text().replace("\0", " "))
        except OSError:
            pass
    return found


class Habits(unittest.TestCase):
    def test_loader_workers_do_not_use_the_engine_and_epochs_have_different_orders(self) -> None:
        got = ranks.answers(2, CASES, "loads")
        first, second = (sorted(k for rank in got for k in rank["epochs"][epoch]) for epoch in range(2))
        self.assertEqual([first, second], [list(range(24))] * 2)
        for rank in got:
            self.assertNotEqual(*rank["epochs"])
            self.assertEqual([rank["workers"], rank["here"], rank["steps"]], [4, False, 2 * 24 // (2 * 4 * 2)])

    def test_a_forked_child_cannot_use_the_engine_and_leaves_the_ranks_as_they_are(self) -> None:
        for stage in (0, 3):
            for rank in ranks.answers(2, CASES, "forks", stage):
                for what in ("infers", "trains", "saves"):
                    with self.subTest(stage=stage, what=what):
                        self.assertRegex(rank["said"][what], "^CleaveError: engine: not usable in a process that was forked from a rank")
                        self.assertEqual(rank["said"][f"{what} ends"], 0)
                self.assertEqual(*rank["losses"])

    def test_the_first_rank_alone_saves_a_state_dict(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            for seen in ranks.answers(2, CASES, "first_rank_saves", folder):
                self.assertEqual(seen, dict.fromkeys("012", True))

    def test_a_script_finds_its_place_under_mpirun_and_srun(self) -> None:
        for launcher in (MPIRUN, SRUN):
            self.assertEqual(ranks.answers(2, CASES, "placed", launcher), [[0, 2, 0, 2], [1, 2, 1, 2]], launcher)

    def test_the_store_of_torch_listens_on_the_loopback_alone_and_no_child_has_the_token(self) -> None:
        for seen in ranks.answers(2, CASES, "listens"):
            self.assertEqual([at.split(":")[0] for at in seen["at"]], ["0100007F"])
            self.assertEqual(seen["secrets"], [])

    def test_a_script_ends_under_torchrun_although_engines_and_threads_are_left(self) -> None:
        file = pathlib.Path(__file__).with_name(f"{CASES}.py")
        command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2", "--master_port", str(ranks.free_port()), file]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(sorted(re.findall(r"ended (\[.*?\])", done.stdout)), ["[0, 2, 0, 2]", "[1, 2, 1, 2]"])

    def test_cells_of_a_notebook_train_without_a_launcher_and_may_run_again(self) -> None:
        [seen] = ranks.answers(1, CASES, "notebook")
        self.assertEqual(seen["world"], 1)
        self.assertEqual(seen["losses"][0], seen["losses"][1], "the same model from the start")
        self.assertLess(seen["losses"][0], 0.05, "of 8 at the start")

    def test_an_interrupt_ends_a_job_with_its_exit_code_and_leaves_nothing(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            shared = set(os.listdir("/dev/shm"))
            command = [ranks.CLEAVE, "launch", "-n", "2", "--", sys.executable, ranks.__file__, CASES, "trains_on", f'["{folder}/at"]']
            env = {**os.environ, "HABITS_MARK": folder}
            job = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env, start_new_session=True)
            until = time.monotonic() + 60
            while len(os.listdir(folder)) < 2 and time.monotonic() < until:
                time.sleep(0.02)
            os.killpg(job.pid, signal.SIGINT)  # to the launcher and the ranks, as a terminal does
            said, _ = job.communicate(timeout=60)
            self.assertEqual(job.returncode, 128 + signal.SIGINT, said)
            self.assertIn("KeyboardInterrupt", said)
            self.assertEqual(marked(folder), [])
            self.assertEqual({name for name in os.listdir("/dev/shm") if name not in shared and "cleave" in name}, set())

    def test_a_script_with_a_stop_request_saves_exits_with_75_and_resumes_later(self) -> None:
        for saves, asked in ((True, signal.SIGTERM), (False, signal.SIGINT)):
            with self.subTest(saves=saves, asked=asked), tempfile.TemporaryDirectory() as folder:
                case = [CASES, "is_stopped", json.dumps([folder, saves])]
                command = [ranks.CLEAVE, "launch", "-n", "2", "--", sys.executable, ranks.__file__, *case]
                job = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
                until = time.monotonic() + 60
                while len(list(pathlib.Path(folder).glob("at*"))) < 2 and time.monotonic() < until:
                    time.sleep(0.02)
                job.send_signal(asked)
                said, _ = job.communicate(timeout=60)
                self.assertEqual(job.returncode, 75, said)
                self.assertNotIn("a training finishes this step and saves", said)
                self.assertEqual("stop requested: saved" in said, saves, said)
                step = int(pathlib.Path(folder, "latest").read_text().strip().removeprefix("global_step"))
                self.assertGreater(step, 5)
                ended = ranks.run(2, *case[:2], folder, saves)
                self.assertEqual(ended.code, 0, ended.output)
                for rank in range(2):
                    self.assertEqual(pathlib.Path(folder, f"again{rank}").read_text(), f"{step} {{'of': 'the script'}}")

    def test_the_rank_that_failed_first_decides_however_long_it_takes_to_leave(self) -> None:
        for rank in (0, 1):
            for code in (1, 2):
                ended = ranks.run(2, CASES, "raises", rank, code)
                self.assertEqual(ended.code, code, ended.output)
                self.assertRegex(
                    ended.output.splitlines()[-1], rf"error: rank {rank} ended with exit code {code}: .*a mistake of the script"
                )


if __name__ == "__main__":
    unittest.main(verbosity=2)
