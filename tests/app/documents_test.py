#!/usr/bin/env python3
"""Tests README.md, the guide in docs/ and the pages of the examples: every command runs, every option exists, figures equal those of the
program or of the named results, and pictures equal the output of their scripts. Usage: documents_test.py CLEAVE
"""
import json
import os
import pathlib
import re
import shutil
import struct
import subprocess
import unittest

from app_test import AppTest, CLEAVE, ROOT

GUIDE = ("install", "train", "fine_tune", "configuration", "will_it_fit", "out_of_memory", "slow", "hangs", "resume", "from_deepspeed", "azureml",
         "own_layers")
PAGES = [ROOT / "README.md", *(ROOT / f"docs/{name}.md" for name in GUIDE), *sorted(ROOT.glob("examples/*/README.md"))]
BIN = pathlib.Path(CLEAVE).parent

# Commands that do not run here, and the tests that run them.
ELSEWHERE = {
    "./scripts/quickstart.sh": "scripts/test_examples.sh",
    "./scripts/test.sh": ".ci/run",
    "./scripts/install_packages.sh": "scripts/test.sh",
    "cmake --preset release": "scripts/test.sh",
    "./scripts/install_torch.sh": "scripts/test.sh",
    "./examples/fine_tune/run.sh": "scripts/test_examples.sh",
    "./examples/resume_anywhere/run.sh": "scripts/test_examples.sh",
    "./examples/azureml/run.sh": "tests/app/cluster_examples_test.py",
    "DS_CONFIG=examples/train_gpt/ds_config.json DATA=corpus.txt OUTPUT=run sbatch": "tests/app/cluster_examples_test.py",
    "./examples/torchrun/train.sh": "tests/app/cluster_examples_test.py",
    "./examples/mpi/train.sh": "tests/app/cluster_examples_test.py",
    "./scripts/fetch_digits.sh": "scripts/test_examples.sh",
    "cleave bench matmul": "tests/app/commands_test.py",  # takes minutes
    "cleave launch -n 2 -- build/release/bin/digits": "scripts/test_examples.sh",
    "cleave launch -n 2 -- build/release/bin/encoder": "scripts/test_examples.sh",
    "build/release/bin/encoder plan 8": "scripts/test_examples.sh",
    "cleave launch -n 2 -- python examples/python/": "tests/python/examples_test.py",  # with torch
    "deepspeed --num_gpus 2 examples/python/gpt2.py": "tests/python/examples_test.py",
    # Tens of gigabytes and minutes; only their plans run.
    "cleave launch -n 2 -- train --deepspeed_config examples/gpt2_large/": "",
    "cleave train --deepspeed_config examples/too_large/": "",
}

# Replacements of other launchers, which start the ranks with their documented variables.
LAUNCHERS = {
    "torchrun": ("--no-python --nproc_per_node 2", {"RANK": "{r}", "WORLD_SIZE": "2", "LOCAL_RANK": "{r}", "LOCAL_WORLD_SIZE": "2",
                                                    "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "{port}",
                                                    "TORCHELASTIC_RUN_ID": "none"}),
    "mpirun": ("-n 2", {"OMPI_COMM_WORLD_RANK": "{r}", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "{r}",
                        "OMPI_COMM_WORLD_LOCAL_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "{port}"}),
    "srun": ("-n 2", {"SLURM_PROCID": "{r}", "SLURM_NTASKS": "2", "SLURM_LOCALID": "{r}", "SLURM_STEP_NUM_TASKS": "2",
                      "SLURM_STEP_TASKS_PER_NODE": "2", "SLURM_JOB_ID": "{port}", "SLURM_STEP_NODELIST": "localhost",
                      "SLURM_NNODES": "1", "SLURM_STEP_NUM_NODES": "1", "SLURM_NODEID": "0", "MASTER_ADDR": "127.0.0.1",
                      "MASTER_PORT": "{port}"}),
}


def blocks(page, language):
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)


def commands(block):
    """Returns the commands of a block; continued lines and loops are one command."""
    text = block.replace("\\\n", " ")
    text = re.sub(r"[ \t]+#.*", "", text)
    loops = re.split(r"(^for .*?^done$)", text, flags=re.MULTILINE | re.DOTALL)
    for part in loops:
        if part.startswith("for "):
            yield part
        else:
            yield from (line.strip() for line in part.splitlines() if line.strip())


class Documents(AppTest):
    maxDiff = None

    def setUp(self):
        super().setUp()
        for name in ["examples", "scripts", "docs", "benchmarks"]:
            (self.dir / name).symlink_to(ROOT / name)
        tools = self.dir / "tools"
        tools.mkdir()
        (self.dir / "build" / "release").mkdir(parents=True)
        (self.dir / "build" / "release" / "bin").symlink_to(BIN)
        for name in ("cleave", "deepspeed"):
            (tools / name).symlink_to(BIN / name)
        for name, (options, variables) in LAUNCHERS.items():
            port = 29000 + os.getpid() % 1000 + len(name)
            ranks = "\n".join(" ".join(f"{k}={v.format(r=r, port=port)}" for k, v in variables.items()) + ' "$@" &' for r in range(2))
            (tools / name).write_text(f'#!/bin/bash\nshift {len(options.split())}\n{ranks}\n'
                                      "wait -n; first=$?; wait -n; second=$?; exit $((first ? first : second))\n")
            (tools / name).chmod(0o755)
        shutil.copy(ROOT / "tests/fixtures/tokenizer_llama3.json", self.dir / "tokenizer.json")
        text = self.text.read_text()
        (self.dir / "corpus.txt").write_text(text)
        (self.dir / "kjv.txt").write_text("\n".join(text[i:i + 70] for i in range(0, len(text), 70)))
        shutil.copy(self.dir / "kjv.txt", self.dir / "corpus.txt")
        (self.dir / "ds_config.json").write_text(json.dumps({
            "train_micro_batch_size_per_gpu": "auto", "train_batch_size": "auto", "bf16": {"enabled": "auto"},
            "optimizer": {"type": "AdamW", "params": {"lr": "auto"}}}))
        shutil.copytree(ROOT / "tests/fixtures/published/qwen2", self.dir / "published-model")
        (self.dir / "tokens.bin").write_bytes(struct.pack("<2000H", *(i * i % 61 for i in range(2000))))
        self.env = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}

    def shell(self, command):
        command = re.sub(r"--steps (\d+)", lambda m: f"--steps {min(int(m[1]), 3 if int(m[1]) < 50 else 4)}", command)
        if "published-model" in command:  # a small model here
            command = re.sub(r"--seq_len \d+", "--seq_len 16", command)
        command = command.replace("./scripts/fetch_kjv.sh kjv.txt", "true")  # the text exists already
        return subprocess.run(["bash", "-euo", "pipefail", "-c", command], cwd=self.dir, env=self.env, capture_output=True,
                              text=True, errors="replace", timeout=180)

    def test_every_command_runs(self):
        ran, failed = 0, []
        for page in PAGES:
            opened = [line for line in page.read_text().splitlines() if line.startswith("```")]
            self.assertTrue(all(line in ("```sh", "```text", "```json") for line in opened[::2]), f"{page}: a block has a language")
            for block in blocks(page, "sh"):
                for command in commands(block):
                    by = next((by for begin, by in ELSEWHERE.items() if command.startswith(begin)), None)
                    if by is not None:
                        self.assertTrue(not by or (ROOT / by).exists(), by)
                        continue
                    result = self.shell(command)
                    ran += 1
                    if result.returncode:
                        failed.append(f"{page.relative_to(ROOT)}: {command}\n{result.stdout[-300:]}{result.stderr[-600:]}")
        self.assertEqual(failed, [])
        self.assertGreater(ran, 20)

    def test_every_option_exists(self):
        helps = subprocess.run([CLEAVE, "--help"], capture_output=True, text=True).stdout
        for name in ["train", "launch", "check", "explain", "plan", "eval", "generate", "import", "export", "data", "bench", "report", "data split", "data tokenize",
                     "data inspect", "data ngrams", "inspect", "verify", "digest"]:
            helps += subprocess.run([CLEAVE, *name.split(), "--help"], capture_output=True, text=True).stdout
        others = {"--preset", "--build", "--install", "--prefix", "--no-python", "--no-deps", "--nproc_per_node", "--quick", "--resume", "--requeue", "--lose_node", "--first", "--second"}
        for page in PAGES + [ROOT / "docs" / "memory.md"]:
            for option in set(re.findall(r"(?<![\w-])--[a-z][a-z_-]+", page.read_text())) - others:
                self.assertIn(option, helps, f"{page.relative_to(ROOT)} names an option that no command has")

    def test_measured_figures_are_in_the_named_results(self):
        text = (ROOT / "README.md").read_text()
        section = text[text.index("## Results"):text.index("## Comparison")]
        results = "".join((ROOT / name).read_text() for name in re.findall(r"\]\((benchmarks/results/[\w.]+)\)", section))
        self.assertTrue(results)
        figures = re.findall(r"\b\d{3}\b(?=,| \||$)", section, re.MULTILINE)
        self.assertGreaterEqual(len(figures), 5)
        rounded = {f"{float(number):.0f}" for number in re.findall(r"\d+\.\d+", results)}
        self.assertEqual(set(figures) - rounded - set(re.findall(r"(?<=\| )\d{3}(?= \|)", results)), set())

    def test_results_name_a_commit_and_an_existing_command(self):
        listed = "".join(page.read_text() for page in ROOT.glob("benchmarks/**/CMakeLists.txt"))
        programs = set(re.findall(r"\b\w+_bench\b", listed))
        shallow = subprocess.run(["git", "rev-parse", "--is-shallow-repository"], cwd=ROOT, capture_output=True, text=True).stdout
        for page in sorted((ROOT / "benchmarks/results").glob("*.md")):
            for section in re.split(r"^# ", page.read_text(), flags=re.MULTILINE)[1:]:
                where = f"{page.name}: {section.splitlines()[0]}"
                scripts = set(re.findall(r"[\w./]+\.(?:sh|py)\b", section))
                benches = set(re.findall(r"\b\w+_bench\b", section))
                self.assertTrue(scripts or benches or re.search(r"\bcleave (train|launch|generate|eval|plan|bench)\b", section),
                                f"{where}: names no command")
                self.assertEqual(benches - programs, set(), where)
                commits = re.findall(r"\b(?:commits?|and) ([0-9a-f]{7,40})\b", section)
                self.assertTrue(commits, f"{where}: names no commit")
                for commit in commits if shallow.strip() == "false" else []:
                    known = subprocess.run(["git", "merge-base", "--is-ancestor", commit, "HEAD"], cwd=ROOT, capture_output=True)
                    self.assertEqual(known.returncode, 0, f"{where}: commit {commit} is not in this tree's history")
                for script in scripts:  # in the tree, or in a measured one
                    there = [(ROOT / script).is_file(), shallow.strip() != "false"]
                    for commit in commits:
                        there.append(subprocess.run(["git", "cat-file", "-e", f"{commit}:{script}"], cwd=ROOT, capture_output=True).returncode == 0)
                    self.assertTrue(any(there), f"{where}: {script} is not in the tree")

    def plan(self, config, model, seq_len, world, *options):
        out = self.run_cleave("plan", "--deepspeed_config", config, "--model", model, "--seq_len", seq_len, "--world_size", world,
                              "--json", *options).stdout
        return json.loads(out)["ranks"]

    def test_the_table_of_three_layouts_equals_the_plan(self):
        page = (ROOT / "examples/train_3d/README.md").read_text()
        rows = re.findall(r"^\| `(\w+\.json)` \| ([\d.]+) MiB \| ([\d.]+) MiB \|$", page, re.MULTILINE)
        self.assertEqual(len(rows), 3)
        for name, memory, sent in rows:
            ranks = self.plan(ROOT / "examples/train_3d" / name, "llama-tiny", 64, 8)
            most = max(sum(sum(c.values()) for c in rank["memory"].values()) for rank in ranks)
            bytes_sent = max(sum(sum(c.values()) for c in rank["comm_bytes"].values()) for rank in ranks)
            self.assertEqual((memory, sent), (f"{most / 2**20:.2f}", f"{bytes_sent / 2**20:.2f}"), name)

    def test_the_shown_plan_of_a_model_on_disk_is_current(self):
        page = ROOT / "examples/too_large/README.md"
        shown = next(block for block in blocks(page, "text") if "optimizer_state" in block)
        got = self.run_cleave("plan", "--deepspeed_config", ROOT / "examples/too_large/ds_config_disk.json", "--model", "qwen2.5-3b",
                              "--seq_len", 128, "--device_memory", "6GiB", "--host_memory", "10GiB").stdout
        self.assertIn(shown.strip(), got)

    def test_the_picture_of_the_plan_is_current(self):
        drawn = self.dir / "overview.svg"
        subprocess.run(["python3", str(ROOT / "scripts/draw_overview.py"), CLEAVE, str(drawn)], check=True)
        self.assertEqual(drawn.read_text(), (ROOT / "docs/overview.svg").read_text())

    def test_the_drawings_of_folders_and_step_are_current(self):
        subprocess.run(["python3", str(ROOT / "scripts/draw_architecture.py"), str(self.dir)], check=True)
        for name in ("layers.svg", "step.svg", "unit.svg"):
            self.assertEqual((self.dir / name).read_text(), (ROOT / "docs" / name).read_text(), name)

    def test_links_have_targets(self):
        for page in PAGES + sorted((ROOT / "docs").glob("*.md")) + [ROOT / "CONTRIBUTING.md"]:
            for link in re.findall(r"\]\(([^)#:]+)(?:#[\w-]+)?\)", page.read_text()):
                self.assertTrue((page.parent / link).exists(), f"{page.relative_to(ROOT)}: {link}")
            headings = {re.sub(r"[^\w -]", "", h.lower()).replace(" ", "-") for h in re.findall(r"^#+ (.*)", page.read_text(), re.M)}
            for anchor in re.findall(r"\]\(#([\w-]+)\)", page.read_text()):
                self.assertIn(anchor, headings, page)


if __name__ == "__main__":
    unittest.main(verbosity=2)
