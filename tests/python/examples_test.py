"""Scripts of examples/python, started like their Azure ML jobs in the emulator, and by `deepspeed`."""

import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest
from typing import ClassVar

import ranks
import safetensors.torch

ROOT = pathlib.Path(__file__).resolve().parents[2]
EXAMPLES, BIN = ROOT / "examples/python", ranks.BUILD / "bin"


class Examples(unittest.TestCase):
    work: ClassVar[pathlib.Path]

    @classmethod
    def setUpClass(cls) -> None:
        cls.work = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
        (cls.work / "text").mkdir()
        (cls.work / "text/kjv.txt").write_bytes(b"".join(file.read_bytes() for file in sorted(ROOT.glob("docs/*.md"))))

    def run_in(self, *command: object) -> str:
        path = os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])
        env = {**os.environ, "PATH": path}
        done = subprocess.run([str(c) for c in command], capture_output=True, text=True, env=env, cwd=self.work, timeout=120)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout

    def job(self, name: str) -> tuple[str, pathlib.Path]:
        """Returns the output of a job's processes, and the folder of its output."""
        tools = ["--tools", BIN, "--mount", BIN / "azureml_mount.so", "--work", self.work / name, "--input", f"text={self.work}/text"]
        said = self.run_in(sys.executable, ROOT / "examples/azureml/emulate.py", EXAMPLES / f"azureml/{name}.yml", *tools, "--verbose")
        return said, self.work / f"{name}/datastores/workspaceblobstore/cleave/python_{name}"

    def number(self, words: str, said: str) -> float:
        """Returns the last number after these words."""
        found = re.findall(re.escape(words) + r" ([0-9.e-]+)", said)
        self.assertTrue(found, said)
        return float(found[-1])

    def test_gpt2_learns_on_two_nodes_and_resumes_under_deepspeed(self) -> None:
        said, output = self.job("gpt2")
        self.assertLess(self.number("step 100: loss", said), 3.4, "ln 256 is 5.5")
        options = ["--deepspeed", "--deepspeed_config", EXAMPLES / "gpt2.json", "--output", output, "--steps", 125]
        again = self.run_in(BIN / "deepspeed", "--num_gpus", 1, EXAMPLES / "gpt2.py", *options)
        self.assertLess(self.number("step 125: loss", again), 3.4)
        self.assertNotIn("step 100:", again, "saved steps are not repeated")
        self.run_in(BIN / "cleave", "verify", output)

    def test_the_trainer_saves_trained_weights(self) -> None:
        said, output = self.job("trainer")
        self.assertLess(self.number("loss of the training:", said), 4.2)
        self.assertIn("transformer.wte.weight", safetensors.torch.load_file(output / "model.safetensors"))

    def test_the_cifar10_network_learns_the_classes(self) -> None:
        said, output = self.job("cifar10")
        self.assertGreaterEqual(self.number("accuracy on held-out images:", said), 90)
        self.run_in(BIN / "cleave", "verify", output)

    def test_the_pipeline_learns_on_two_stages(self) -> None:
        said, output = self.job("pipeline")
        self.assertLess(self.number("loss of held-out images:", said), 0.5)
        self.run_in(BIN / "cleave", "verify", output)

    def test_the_table_lists_every_script_and_its_job(self) -> None:
        table = (EXAMPLES / "README.md").read_text()
        for script in EXAMPLES.glob("*.py"):
            self.assertIn(f"[`{script.name}`]({script.name})", table)
            self.assertTrue((EXAMPLES / f"azureml/{script.stem}.yml").exists(), script.name)


if __name__ == "__main__":
    unittest.main(verbosity=2)
