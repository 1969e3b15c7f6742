#!/usr/bin/env python3
"""Every command in the documents runs, here or in the test that a table names, and every option exists.
Usage: document_commands_test.py CLEAVE
"""
import json
import os
import pathlib
import re
import shutil
import struct
import subprocess
import sys
import unittest

from app_test import AppTest, CLEAVE, ROOT
from pages import LAUNCHERS, PAGES, blocks, commands, inline_commands

BIN = pathlib.Path(CLEAVE).parent
LANGUAGES = {"```sh", "```text", "```json", "```python", "```cpp"}

# Beginnings of commands that another test runs: its file, and the text there that runs it.
SUITE, EXAMPLES, WHEEL = "scripts/test.sh", "scripts/test_examples.sh", "scripts/test_wheel.sh"
CLUSTERS, HOSTS, PYTHON = "tests/app/cluster_examples_test.py", "tests/app/other_hosts_test.py", "tests/python/examples_test.py"
ELSEWHERE = {
    "./scripts/quickstart.sh": (EXAMPLES, "./scripts/quickstart.sh"),
    "cleave replay runs/first": ("tests/app/replay_test.py", 'self.run_cleave("replay", '),
    "cleave report runs/first/flight": ("tests/app/interrupted_test.py", '"report", self.out / "flight"'),
    "./scripts/test.sh": (".ci/run", "./scripts/test.sh"),
    "./scripts/install_packages.sh": (SUITE, "./scripts/install_packages.sh build test python example docs"),
    "scripts/install_packages.sh docs": (SUITE, "./scripts/install_packages.sh build test python example docs"),
    "cmake --preset release && cmake --build --preset release && ctest": (SUITE, 'ctest --preset "$preset"'),
    "cmake --preset release && cmake --build --preset release": ("scripts/quickstart.sh", "cmake --preset release"),
    "cmake --preset release -DCLEAVE_TESTS=OFF": (WHEEL, "./scripts/build_wheel.sh"),  # has these options
    "cmake --preset cuda -B build/alone": (SUITE, "scripts/check_alone.py build/alone"),
    "cmake --preset cuda": (SUITE, "build cuda"),
    "cmake --preset fuzz": (SUITE, "./scripts/fuzz.sh"),
    "cmake --install build/release": ("scripts/test_install.sh", "cmake --install build/release --prefix"),
    "ctest --preset release -L pure": (SUITE, 'ctest --preset "$preset"'),
    "ctest --preset release -R python_examples": (SUITE, 'ctest --preset "$preset"'),
    "CLEAVE_FULL_PRODUCT=1 ctest": ("tests/runtime/product_test.cpp", "CLEAVE_FULL_PRODUCT"),
    "tests/cuda_interpreter/run.sh": (SUITE, "./tests/cuda_interpreter/run.sh"),
    "tests/cuda_interpreter/scripts.py": ("tests/cuda_interpreter/run.sh", "tests/cuda_interpreter/scripts.py build/interpreter"),
    "scripts/kernel_resources.py": ("tests/kernels/CMakeLists.txt", "scripts/kernel_resources.py"),
    "scripts/gpu_check.sh": ("tests/app/gpu_scripts_test.py", "gpu_check.sh"),
    "scripts/gpu_table.py": ("tests/app/gpu_scripts_test.py", "gpu_table.py"),
    "./scripts/build_wheel.sh": (WHEEL, "./scripts/build_wheel.sh"),
    "scripts/build_wheel.sh": (WHEEL, "./scripts/build_wheel.sh"),
    "./scripts/release.sh": ("tests/python/release_test.py", 'scripts/release.sh'),
    "CLEAVE_PYTHON=.venv/bin/python ./scripts/build_wheel.sh": (WHEEL, "./scripts/build_wheel.sh --cuda"),
    "pip install wheels/cleave-*.whl": (WHEEL, '"$work/wheels"/cleave-*.whl'),
    "pip install .": (WHEEL, "./scripts/build_wheel.sh"),
    "pip install --no-deps python/deepspeed_name": (WHEEL, "python/deepspeed_name"),
    "./scripts/install_torch.sh": (SUITE, "./scripts/install_torch.sh"),
    "./scripts/fetch_digits.sh": (EXAMPLES, "./scripts/fetch_digits.sh"),
    "./examples/fine_tune/run.sh": (EXAMPLES, "./examples/fine_tune/run.sh"),
    "./examples/resume_anywhere/run.sh": (EXAMPLES, "./examples/resume_anywhere/run.sh"),
    "./examples/azureml/run.sh": (CLUSTERS, 'AZURE / "run.sh"'),
    "DS_CONFIG=examples/train_gpt/ds_config.json DATA=corpus.txt OUTPUT=run sbatch": (CLUSTERS, "examples/slurm/train.sbatch"),
    "./examples/torchrun/train.sh": (CLUSTERS, 'self.run_page("torchrun")'),
    "./examples/mpi/train.sh": (CLUSTERS, 'self.run_page("mpi")'),
    "cleave bench": ("tests/app/commands_test.py", '("bench", "matmul", '),  # takes minutes
    "cleave launch -n 2 -- build/release/bin/digits": (EXAMPLES, '"$bin/digits"'),
    "cleave launch -n 2 -- build/release/bin/encoder": (EXAMPLES, '"$bin/encoder"'),
    "build/release/bin/encoder plan 8": (EXAMPLES, '"$bin/encoder" plan 8'),
    "cleave top": ("tests/app/live_test.py", 'self.run_cleave("top", '),
    "cleave runs": ("tests/app/live_test.py", 'self.run_cleave("runs", '),
    # With torch.
    "cleave launch -n 2 -- python examples/python/cifar10.py": (PYTHON, 'self.job("cifar10")'),
    "cleave launch -n 2 -- python examples/python/trainer.py": (PYTHON, 'self.job("trainer")'),
    "deepspeed --num_gpus 2 examples/python/gpt2.py": (PYTHON, 'EXAMPLES / "gpt2.py"'),
    "python SCRIPT": (PYTHON, 'EXAMPLES.glob("*.py")'),
    "cleave plan train.py:make_model": ("tests/python/plan_test.py", 'run(f"{FILE}:make_mlp"'),
    "cleave plan FILE.py:FUNCTION": ("tests/python/plan_test.py", 'run(f"{FILE}:make_mlp"'),
    "cleave compare -n 2 -- python": ("tests/python/compare_test.py", 'compare("-n", "2", "--json", "--", sys.executable'),
    "python -m cleave.utils.zero_to_fp32": ("tests/python/checkpoint_test.py", '"--safe_serialization"'),
    "cleave train --resume required": ("tests/python/checkpoint_test.py", '"--resume", "required"'),
    "cleave export DIR OUT --adapter": ("tests/app/lora_test.py", '"--adapter"'),
    # On several hosts, or started by SLURM.
    "deepspeed -H hosts train.py": (HOSTS, '"-H", self.hosts'),
    "NCCL_DEBUG=INFO deepspeed -H hosts train.py": (HOSTS, '"-H", self.hosts'),
    "mpirun -n 8 deepspeed train.py": (HOSTS, '["mpirun", "-n", 2, *more, DEEPSPEED'),
    "mpirun ... cleave launch --rank": (HOSTS, '"--launcher", kind'),
    "ssh HOST 'exec cleave launch --node'": (HOSTS, 'self.several("train.py"'),
    "srun --ntasks-per-node 1 deepspeed train.py": ("tests/multinode/slurm_test.py", "--ntasks-per-node"),
    "srun --mpi=pmi2": ("tests/launcher/pmi_test.cpp", "PMI_FD"),
    "srun --mpi=pmix": ("tests/launcher/pmix_test.cpp", "PMIX_STANDIN"),
}
# Commands that no test runs: they need the network, or hours.
NOT_RUN = ("git clone https://github.com/deepspeedai/DeepSpeed", ".venv/bin/pip install", "scripts/run_deepspeed_tests.sh",
           "tests/cuda_interpreter/seeds.py", "cmake --preset cuda-release", "scripts/test_wheel.sh --cuda", 'pip install "nvidia-cublas==13.*"',
           "pip install FILE.whl", "pip install --force-reinstall --no-deps FILE.whl", "pip install nvidia-nccl-cu13",
           "pip install nvidia-cudnn-cu13", "ssh -L 8080:localhost:8080 HOST", "./scripts/test_matrix.sh", "docker build", "az ml",
           "MLFLOW_ALLOW_FILE_STORE=true mlflow ui", "mlflow migrate-filestore", "kubectl")

# Commands with placeholders, and parts of commands, in running text: the command that runs.
TRAIN = "cleave train --deepspeed_config ds_config.json --model tiny --data corpus.txt --seq_len 16 --steps 2"
PLAN = "cleave plan --deepspeed_config ds_config.json --model tiny --seq_len 16"
FILLED = {
    "cleave launch -n N -- COMMAND": "cleave launch -n 2 -- true",
    "cleave explain FILE": "cleave explain ds_config.json",
    "cleave explain KEY": "cleave explain overlap_comm",
    "cleave data split IN --train A --validation B": "cleave data split corpus.txt --train train.txt --validation validation.txt",
    "cleave data inspect FILE": "cleave data inspect tokens.bin",
    "cleave data inspect FILE --at N --count M": "cleave data inspect tokens.bin --at 3 --count 5",
    "cleave import FOLDER OUT": "cleave import published-model runs/from_hugging_face --seq_len 16",
    "cleave import --from_deepspeed DIR OUT": "cleave import --from_deepspeed deepspeed_run runs/from_deepspeed --seq_len 8",
    "cleave export DIR OUT": "cleave export runs/first exported",
    "cleave train --export OUT": f"{TRAIN} --output runs/ends --export exported-at-the-end",
    "cleave train --http 8080": f"{TRAIN} --http 0",
    "cleave train --trace FILE": f"{TRAIN} --trace runs/shown.json",
    "cleave plan --suggest": f"{PLAN} --suggest --device h100",
    "cleave plan --device h100": f"{PLAN} --device h100",
    "cleave plan --device FILE": f"{PLAN} --device machine.json",
    "scripts/layout_digests.py NEW --against OLD": f"scripts/layout_digests.py {CLEAVE} --against {CLEAVE} --only 'gpt fp32 1 rank'",
    "deepspeed cleave train": f"deepspeed {TRAIN}",
    "deepspeed cleave train ...": f"deepspeed {TRAIN}",
    "torchrun --no-python --nproc_per_node 2 cleave train ...": f"torchrun --no-python --nproc_per_node 2 {TRAIN}",
    "mpirun -n 2 cleave train ...": f"mpirun -n 2 {TRAIN}",
    "srun -n 2 cleave train ...": f"srun -n 2 {TRAIN}",
    "srun -n N cleave train": f"srun -n 2 {TRAIN}",
    "deepspeed train.py ARGS": "deepspeed train.py --epochs 1",
    "deepspeed --num_gpus 2 train.py ARGS": "deepspeed --num_gpus 2 train.py --epochs 1",
    "python -u train.py --local_rank=N ARGS": "python -u train.py --local_rank=0 --epochs 1",
    "python -u -m pack.train --local_rank=N": "python -u -m pack.train --local_rank=0",
}
SCRIPT = "import sys\nif not any(word.startswith(('--local_rank=', '--deepspeed_config')) for word in sys.argv):\n    sys.exit('no rank')\n"
# Files with options that no help text of the program has.
SCRIPTS = ("app/start", "benchmarks", "examples", "python", "scripts", "tests/cuda_interpreter")
SCRIPT_TYPES = {".cpp", ".py", ".sh", ".sbatch"}
OF_OTHERS = {"__build_arg", "__cap_add", "__file", "__force_reinstall", "__gpus", "__network", "__no_deps", "__ntasks_per_node", "__mpi", "__shm_size", "__tag",
             "__ulimit", "__version", "__backend_store_uri", "__from_literal"}
DATA = ("split", "tokenize", "inspect", "ngrams")


class DocumentCommands(AppTest):
    maxDiff = None

    def setUp(self):
        super().setUp()
        for name in ["examples", "scripts", "docs", "benchmarks", "python"]:
            (self.dir / name).symlink_to(ROOT / name)
        tools = self.dir / "tools"
        tools.mkdir()
        (self.dir / "build" / "release").mkdir(parents=True)
        (self.dir / "build" / "release" / "bin").symlink_to(BIN)
        for name in ("cleave", "deepspeed"):
            (tools / name).symlink_to(BIN / name)
        (tools / "python").symlink_to(sys.executable)
        for name, (options, variables) in LAUNCHERS.items():
            port = 29000 + os.getpid() % 1000 + len(name)
            ranks = "\n".join(" ".join(f"{k}={v.format(r=r, port=port)}" for k, v in variables.items()) + ' "$@" &' for r in range(2))
            (tools / name).write_text(f'#!/bin/bash\nshift {len(options.split())}\n{ranks}\n'
                                      "wait -n; first=$?; wait -n; second=$?; exit $((first ? first : second))\n")
            (tools / name).chmod(0o755)
        shutil.copy(ROOT / "tests/fixtures/tokenizer_llama3.json", self.dir / "tokenizer.json")
        text = self.text.read_text()
        (self.dir / "kjv.txt").write_text("\n".join(text[i:i + 70] for i in range(0, len(text), 70)))
        shutil.copy(self.dir / "kjv.txt", self.dir / "corpus.txt")
        (self.dir / "ds_config.json").write_text(json.dumps({
            "train_micro_batch_size_per_gpu": "auto", "train_batch_size": "auto", "bf16": {"enabled": "auto"},
            "optimizer": {"type": "AdamW", "params": {"lr": "auto"}}}))
        (self.dir / "pack").mkdir()
        for name in ("train.py", "pack/train.py"):
            (self.dir / name).write_text(SCRIPT)
        (self.dir / "program").symlink_to(shutil.which("true"))
        shutil.copytree(ROOT / "tests/fixtures/published/qwen2", self.dir / "published-model")
        shutil.copytree(ROOT / "tests/fixtures/deepspeed/zero1_bf16", self.dir / "deepspeed_run")
        (self.dir / "tokens.bin").write_bytes(struct.pack("<2000H", *(i * i % 61 for i in range(2000))))
        self.env = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}

        self.measure(self.dir / "machine.json")

    def measure(self, file):
        """Writes a report of `cleave bench` with the rows that a plan names as missing."""
        rows = []
        for _ in range(3):
            file.write_text(json.dumps({"version": "1", "cpu": "a CPU", "instructions": "AVX", "threads": 2, "rows": rows}))
            missing = self.shell(FILLED["cleave plan --device FILE"]).stderr
            names = re.findall(r"[\w./]+/(?:fp32|bf16)", missing.replace("...", "100M"))
            rows += [{"name": name, "unit": "GB/s", "median": 1.0, "low": 1.0, "high": 1.0} for name in names]

    def shell(self, command):
        command = re.sub(r"--steps (\d+)", lambda m: f"--steps {min(int(m[1]), 3 if int(m[1]) < 50 else 4)}", command)
        command = re.sub(r"--model gpt2-(large|xl)", "--model tiny", command) if " train " in command else command  # gigabytes otherwise
        if "published-model" in command:  # a small model here
            command = re.sub(r"--seq_len \d+", "--seq_len 16", command)
        command = command.replace("./scripts/fetch_kjv.sh kjv.txt", "true")  # the text exists already
        return subprocess.run(["bash", "-euo", "pipefail", "-c", command], cwd=self.dir, env=self.env, capture_output=True,
                              text=True, errors="replace", timeout=180)

    def test_every_command_runs(self):
        ran, failed, elsewhere, in_text = 0, [], set(), set()
        for page in PAGES:
            opened = [line for line in page.read_text().splitlines() if line.startswith("```")]
            self.assertEqual(set(opened[::2]) - LANGUAGES, set(), f"{page}: a block has a language")
            shown = [command for block in blocks(page, "sh") for command in commands(block)]
            named = set(inline_commands(page)) - in_text
            in_text |= named
            for command in dict.fromkeys([*shown, *sorted(named)]):
                begin = next((begin for begin in [*NOT_RUN, *ELSEWHERE] if command.startswith(begin)), None)
                if begin is not None:
                    elsewhere.add(begin)
                    continue
                if re.fullmatch(r"cleave( [a-z]+)+", command):
                    command += " --help"  # the name of a command
                result = self.shell(FILLED.get(command, command))
                ran += 1
                if result.returncode:
                    failed.append(f"{page.relative_to(ROOT)}: {command}\n{result.stdout[-300:]}{result.stderr[-600:]}")
        self.assertEqual(failed, [])
        self.assertGreater(ran, 60)
        self.assertEqual({*NOT_RUN, *ELSEWHERE} - elsewhere, set(), "no page has these commands")
        self.assertEqual(set(FILLED) - in_text, set(), "no page has these commands")

    def test_shown_scripts_can_be_started(self):
        """A script in a command is executable, and so is every script with a first line that names its interpreter."""
        words = {command.split()[0] for page in PAGES for block in blocks(page, "sh") for command in commands(block)}
        words |= {command.split()[0] for page in PAGES for command in inline_commands(page)}
        shown = {ROOT / word for word in words if re.fullmatch(r"(?:\./)?(?:scripts|examples|benchmarks|tests)/\S+", word)}
        self.assertGreater(len(shown), 15)
        for folder in ("scripts", "benchmarks", "examples", "tests/cuda_interpreter"):
            files = [path for path in (ROOT / folder).rglob("*") if path.suffix in {".py", ".sh"}]
            shown |= {path for path in files if path.read_text().startswith("#!")}
        self.assertEqual({str(path) for path in shown if not (os.access(path, os.X_OK) and path.read_text().startswith("#!"))}, set())

    def test_the_named_tests_run_the_commands(self):
        runners = "".join((ROOT / name).read_text() for name in (SUITE, ".ci/run", EXAMPLES))
        for begin, (file, text) in ELSEWHERE.items():
            path = ROOT / file
            self.assertIn(text, path.read_text(), begin)
            if path.name != "CMakeLists.txt" and file != ".ci/run":
                registered = (path.parent / "CMakeLists.txt").read_text() if file.startswith("tests/") else ""
                self.assertTrue(path.name in runners or path.stem.removesuffix("_test") in registered, f"{file} is run by nothing")

    def test_every_option_exists(self):
        """An option is in a help text, in a script of the tree, or belongs to another tool."""
        names = re.findall(r"^  (\w+)  +\S", self.run_cleave("--help").stdout, re.MULTILINE)
        texts = [self.run_cleave(*name, "--help").stdout for name in [[], *([n] for n in names), *(["data", n] for n in DATA)]]
        texts += [path.read_text() for folder in SCRIPTS for path in (ROOT / folder).rglob("*") if path.suffix in SCRIPT_TYPES]
        known = {option.replace("-", "_") for option in re.findall(r"--[a-z][\w-]+", "".join(texts))} | OF_OTHERS
        for page in PAGES:
            options = {option.replace("-", "_") for option in re.findall(r"(?<![\w-])--[a-z][\w-]+", page.read_text())}
            self.assertEqual(options - known, set(), page.relative_to(ROOT))


if __name__ == "__main__":
    unittest.main(verbosity=2)
