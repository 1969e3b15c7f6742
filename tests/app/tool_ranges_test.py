#!/usr/bin/env python3
"""NVTX ranges of a training as a tool sees them. Usage: tool_ranges_test.py CLEAVE RECORDER, a library that replaces the tool."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

CLEAVE, RECORDER = sys.argv[1:3]
if not pathlib.Path(RECORDER).is_file():  # NVTX ignores a tool that it cannot load
    sys.exit(f"{RECORDER} is missing: build the target gpu_programs first")


class ToolRanges(unittest.TestCase):
    def ranges(self, **env):
        """Returns (depth, name) of each range as it begins, in a training of two blocks for two steps."""
        with tempfile.TemporaryDirectory() as folder:
            config, data, seen = (pathlib.Path(folder, name) for name in ("ds_config.json", "text.txt", "ranges.txt"))
            config.write_text(json.dumps({"train_micro_batch_size_per_gpu": 1, "optimizer": {"type": "AdamW"}}))
            data.write_text("a few words " * 40)
            seen.touch()
            command = [
                CLEAVE,
                "train",
                "--deepspeed_config",
                config,
                "--model",
                "tiny",
                "--data",
                data,
                "--seq_len",
                "16",
                "--steps",
                "2",
                "--device",
                "cpu",
            ]
            done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "TOOL_RECORDER": str(seen), **env})
            self.assertEqual(done.returncode, 0, done.stderr)
            return [(int(line.split(" ", 1)[0]), line.split(" ", 1)[1]) for line in seen.read_text().splitlines()]

    def test_a_tool_sees_each_pass_of_each_layer_and_the_update(self):
        seen = self.ranges(NVTX_INJECTION64_PATH=RECORDER)
        names = [name for _, name in seen]
        for name in ("forward: h.0", "backward: h.0", "forward: h.3", "step: update"):
            self.assertEqual(names.count(name), 2, names)
        self.assertLess(names.index("forward: h.0"), names.index("forward: h.1"))
        self.assertLess(names.index("backward: h.1"), names.index("backward: h.0"))
        self.assertEqual({depth for depth, name in seen if name == "step: update"}, {0}, "what begins has ended")
        self.assertEqual({depth for depth, name in seen if name == "step: h.0"}, {1}, "a part of the update")

    def test_without_a_tool_there_are_no_ranges(self):
        self.assertEqual(self.ranges(), [])


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
