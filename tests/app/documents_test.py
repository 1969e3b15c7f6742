#!/usr/bin/env python3
"""Figures in the documents equal those of the program or of the named results, pictures equal the output of their scripts, and links have
targets. Usage: documents_test.py CLEAVE
"""
import json
import re
import subprocess
import unittest

from app_test import AppTest, CLEAVE, ROOT
from pages import PAGES, blocks


class Documents(AppTest):
    maxDiff = None

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
        for page in PAGES:
            for link in re.findall(r"\]\(([^)#:]+)(?:#[\w-]+)?\)", page.read_text()):
                self.assertTrue((page.parent / link).exists(), f"{page.relative_to(ROOT)}: {link}")
            headings = {re.sub(r"[^\w -]", "", h.lower()).replace(" ", "-") for h in re.findall(r"^#+ (.*)", page.read_text(), re.M)}
            for anchor in re.findall(r"\]\(#([\w-]+)\)", page.read_text()):
                self.assertIn(anchor, headings, page)


if __name__ == "__main__":
    unittest.main(verbosity=2)
