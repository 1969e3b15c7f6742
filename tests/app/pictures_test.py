#!/usr/bin/env python3
"""Scripts that draw and summarize the results of a run."""
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent


def run(script, *args):
    return subprocess.run([sys.executable, ROOT / "scripts" / script, *map(str, args)], capture_output=True, text=True)


class Pictures(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.dir = pathlib.Path(self.folder.name)

    def tearDown(self):
        self.folder.cleanup()

    def trace(self, name, events):
        """Writes the events of a step: (name, micro, begin, end) in milliseconds. The step is written twice, because the first one is
        skipped."""
        path = self.dir / name
        path.write_text("[\n" + ",\n".join(json.dumps(
            {"ph": "X", "cat": "pipeline", "name": what, "ts": 1000 * (begin + again), "dur": 1000 * (end - begin),
             "args": {"cpu_us": 1000 * (end - begin), "micro": micro, "chunk": 0}})
            for again in (0, 1000) for what, micro, begin, end in events))
        return path

    def stage(self, first):
        """Returns the events of two micro-batches on a stage of two: forward 10 ms, backward 20 ms, sequentially, 90 ms in total."""
        if first:
            return [("forward", 0, 0, 10), ("send_activation", 0, 10, 10), ("forward", 1, 10, 20), ("send_activation", 1, 20, 20),
                    ("recv_gradient", 0, 20, 40), ("backward", 0, 40, 60), ("recv_gradient", 1, 60, 70), ("backward", 1, 70, 90)]
        return [("recv_activation", 0, 0, 10), ("forward", 0, 10, 20), ("backward", 0, 20, 40), ("send_gradient", 0, 40, 40),
                ("recv_activation", 1, 40, 40), ("forward", 1, 40, 50), ("backward", 1, 50, 70), ("send_gradient", 1, 70, 70)]

    def test_the_idle_share_of_a_pipe_does_not_depend_on_other_pipes(self):
        one = run("pipeline_idle.py", self.trace("0", self.stage(True)), self.trace("1", self.stage(False)))
        self.assertEqual(one.returncode, 0, one.stderr)
        self.assertIn("idle, measured 33.3 %", one.stdout)  # 120 of 180 ms
        self.assertIn("idle, replayed 33.3 %", one.stdout)
        both = run("pipeline_idle.py", *(self.trace(f"{i}", self.stage(i < 2)) for i in range(4)))
        self.assertEqual(both.returncode, 0, both.stderr)
        self.assertIn("ranks 0, 2:", both.stdout)
        self.assertIn("ranks 1, 3:", both.stdout)
        self.assertEqual(both.stdout.count("idle, measured 33.3 %"), 2)

    def test_data_parallelism_is_not_called_idle(self):
        step = [("forward", 0, 0, 10), ("backward", 0, 30, 50)]
        r = run("pipeline_idle.py", self.trace("0", step), self.trace("1", step))
        self.assertEqual(r.returncode, 0, r.stderr)
        self.assertNotIn("idle,", r.stdout)
        self.assertNotIn("idle of", r.stdout)
        self.assertEqual(r.stdout.count("one stage: no idle share without a pipeline"), 2)

    def test_files_of_incomplete_pipes_are_errors(self):
        r = run("pipeline_idle.py", self.trace("1", self.stage(False)), self.trace("0", self.stage(True)))
        self.assertEqual(r.returncode, 1)
        self.assertIn("in the order of their ranks", r.stderr)

    def test_a_flame_graph_has_a_box_a_function_as_wide_as_its_share_of_the_samples(self):
        kernel = "cleave::kernels::cpu::run(cleave::kernels::{} const&)+0x1f (/bin/cleave)"
        inner = "void cleave::kernels::cpu::v4::(anonymous namespace)::tile<cleave::Pair<int, 2> >(float const*, long)+0x8 (/bin/cleave)"
        start = "start_thread+0x2 (/lib/libc.so.6)"
        seen = [[inner, kernel.format("Matmul"), start]] * 2 + [[kernel.format("Matmul"), start]] * 3 + [[kernel.format("Adam"), start]] * 2
        seen.append(["clear_page+0x1 ([kernel.kallsyms])", "page_fault+0x2 ([kernel.kallsyms])", inner, kernel.format("Matmul"), start])
        seen += [["main+0x4 (/bin/cleave)"]]  # without a kernel: not counted
        seen += [["[unknown] ([unknown])"] * 2] * 2  # generated code
        text = "".join("cleave 7 1.5: 5025125 cpu-clock: \n" + "".join(f"\t  7f{i:04x} {frame}\n" for i, frame in enumerate(stack)) + "\n"
                       for stack in seen)
        out = self.dir / "flame.svg"
        done = subprocess.run([sys.executable, ROOT / "scripts/flame_graph.py", out, "--from", "^(Matmul|Adam)$", "--unknown", "JIT",
                               "--title", "a & b"], input=text, capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        drawn = re.findall(r'<title>(\S+): ([\d.]+) %</title><rect x="([\d.]+)" y="(\d+)" width="([\d.]+)"', out.read_text())
        self.assertEqual([(name, share, x, width) for name, share, x, _, width in drawn],
                         [("Adam", "20.0", "0.0", "240.0"), ("JIT", "20.0", "240.0", "240.0"), ("Matmul", "60.0", "480.0", "720.0"),
                          ("kernels::cpu::v4::tile", "30.0", "480.0", "360.0"), ("page_fault", "10.0", "480.0", "120.0")])
        self.assertLess(int(drawn[3][3]), int(drawn[2][3]), "a function stands upon the one that called it")
        self.assertIn("a &amp; b", out.read_text())
        none = subprocess.run([sys.executable, ROOT / "scripts/flame_graph.py", out, "--from", "Lamb"], input=text, capture_output=True,
                              text=True)
        self.assertEqual(none.returncode, 1)
        self.assertIn("has a function with Lamb", none.stderr)

    def test_ticks_of_loss_curves_are_round(self):
        metrics = self.dir / "m.jsonl"
        metrics.write_text("\n".join(json.dumps({"step": s, "loss": 5.4321 / s ** 0.5}) for s in range(1, 318)))
        out = self.dir / "out.svg"
        self.assertEqual(run("plot_losses.py", out, f"T:a={metrics}").returncode, 0)
        losses = re.findall(r'text-anchor="end">([\d.]+)<', out.read_text())
        steps = re.findall(r'text-anchor="middle">(\d+)<', out.read_text())
        self.assertEqual(losses, ["1", "2", "3", "4", "5"])
        self.assertEqual(steps, ["50", "100", "150", "200", "250", "300"])


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
