#!/usr/bin/env python3
"""Recorded steps of cleave train, and cleave replay, which computes the step of one rank again."""
import json
import pathlib
import shutil
import unittest

from app_test import AppTest

RECORD = {"cleave": {"record_steps": {"interval": 2}}}
LAYOUTS = {"stage 1": {"zero_optimization": {"stage": 1}, "gradient_accumulation_steps": 2},
           "stage 3": {"zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0}, "bf16": {"enabled": True}},
           "pipe": {"pipeline": {"stages": 2}, "gradient_accumulation_steps": 2},
           "tensor": {"tensor_parallel": {"autotp_size": 2}, "gradient_clipping": 1.0},
           "sequence": {"sequence_parallel_size": 2},
           "offload": {"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}, "checkpoint": {"async": True}}}


class Replay(AppTest):
    maxDiff = None

    def setUp(self):
        super().setUp()
        self.out = self.dir / "out"

    def replay(self, *args, code=0):
        return self.run_cleave("replay", self.out, *args, code=code)

    def test_each_rank_alone_has_the_bits_of_the_job(self):
        for name, layout in LAYOUTS.items():
            with self.subTest(name):
                plain, self.out = self.dir / f"{name} plain", self.dir / name
                plan = json.loads(self.run_cleave("plan", "--deepspeed_config", self.config(**layout, **RECORD), "--model", "tiny",
                                                  "--seq_len", 32, "--world_size", 2, "--json").stdout)
                said = self.train("--output", self.out, "--save_interval", 1, steps=3, config=self.config(**layout, **RECORD)).stdout
                self.assertIn(f"recorded {self.out}/replay/step-2; compute it again with cleave replay {self.out} --step 2 --rank 0", said)
                seen = self.replay().stdout
                self.assertRegex(seen, r"rank 0, step 2: bits agree: \d+ calls, \d+ state tensors\nrank 1, step 2: bits agree: ")
                self.assertNotIn("differs", seen)
                # The record changes no bit of the training, and has the planned size.
                self.train("--output", plain, steps=3, config=self.config(**layout))
                self.assertEqual(self.run_cleave("digest", plain).stdout, self.run_cleave("digest", self.out).stdout)
                for rank in plan["ranks"]:
                    for r in rank["ranks"]:
                        folder = self.out / f"replay/step-2/rank-{r}"
                        record = json.loads((folder / "record.json").read_text().splitlines()[1])
                        setup = sum(c["received"][1] for c in record["setup"] if "received" in c)
                        state = sum(n["bytes"] for n in self.tensors(folder / "state"))
                        self.assertEqual((folder / "calls.bin").stat().st_size - setup + state, rank["recorded_bytes"], f"{name}, rank {r}")

    def tensors(self, folder):
        """Returns the tensors of safetensors files."""
        for file in folder.glob("*.safetensors"):
            data = file.read_bytes()
            header = json.loads(data[8:8 + int.from_bytes(data[:8], "little")])
            for name, tensor in header.items():
                if name != "__metadata__":
                    yield {"bytes": tensor["data_offsets"][1] - tensor["data_offsets"][0]}

    def test_a_rank_that_sent_other_bytes_is_named_with_its_call(self):
        other = self.dir / "other"
        for out, seed in ((self.out, 1), (other, 2)):
            self.train("--output", out, "--seed", seed, steps=2, config=self.config(**RECORD))
        # The state of rank 1 is another one than that of the step: its memory changed before the step.
        state = self.out / "replay/step-2/rank-1/state"
        shutil.rmtree(state)
        shutil.copytree(other / "replay/step-2/rank-1/state", state)
        seen = self.replay("--step", 2, code=8).stdout
        self.assertIn("rank 0, step 2: bits agree: ", seen)
        self.assertRegex(seen, r"rank 1, step 2: the rank sends other bytes first in call \d+, all_reduce of \d+ fp32 \(.*\) in group "
                               r"'world', backward \(\d+ of \d+ calls and \d+ of \d+ state tensors differ\)")
        self.assertIn("bits agree", self.replay("--rank", 0).stdout)

    def test_newest_steps_of_some_ranks_are_kept(self):
        rule = {"interval": 2, "ranks": "1", "keep": 2}
        self.train("--output", self.out, steps=7, config=self.config(cleave={"record_steps": rule}))
        found = sorted(str(p.relative_to(self.out / "replay")) for p in (self.out / "replay").glob("*/*"))
        self.assertEqual(found, ["step-4/rank-1", "step-6/rank-1"])
        self.assertIn("rank 1, step 6: bits agree", self.replay().stdout)
        self.assertIn("rank 1, step 4: bits agree", self.replay("--step", 4).stdout)

    def test_another_machine_is_named(self):
        self.train("--output", self.out, ranks=1, steps=2, config=self.config(**RECORD))
        seen = self.replay("--threads", 2).stdout
        self.assertIn("bits agree: 0 calls", seen)
        self.assertIn("this computation differs: threads is 2 here and was 1", seen)

    def test_wrong_use_is_an_error(self):
        r = self.train(config=self.config(**RECORD), code=2)
        self.assertIn("cleave.record_steps.interval: needs a folder (got no --output)", r.stderr)
        for ranks, text in (("0,2", "names a rank twice or one that does not exist (got 0,2, expected different ranks below 2)"),
                            ("1,1", "names a rank twice"), ("a", 'expected numbers of ranks, such as "0,3", got "a"')):
            r = self.train("--output", self.out, config=self.config(cleave={"record_steps": {"interval": 1, "ranks": ranks}}), code=2)
            self.assertIn(text, r.stderr)
        self.assertIn(f"{self.dir / 'gone'}: does not exist; give the output folder", self.run_cleave("replay", self.dir / "gone", code=2).stderr)
        self.assertIn(f"{self.text}: not a folder; give the output folder", self.run_cleave("replay", self.text, code=2).stderr)
        self.out.mkdir(exist_ok=True)
        self.assertIn("contains no recorded step; set cleave.record_steps.interval", self.replay(code=2).stderr)
        self.train("--output", self.out, steps=2, config=self.config(**RECORD))
        self.assertIn("--step: not recorded in ", self.replay("--step", 3, code=2).stderr)
        self.assertIn("(got 5, expected 0, 1)", self.replay("--rank", 5, code=2).stderr)
        calls = self.out / "replay/step-2/rank-1/calls.bin"
        whole = calls.read_bytes()
        calls.write_bytes(whole[:-100])
        self.assertRegex(self.replay("--rank", 1, code=4).stderr,
                         rf"calls.bin: too short \(got {len(whole) - 100} bytes, expected \d+\); record the step again")
        state = next((self.out / "replay/step-2/rank-0/state").glob("*.safetensors"))
        data = bytearray(state.read_bytes())
        data[-3] ^= 1
        state.write_bytes(data)
        self.assertIn("rank-0/state", self.replay("--rank", 0, code=4).stderr)
        shutil.rmtree(self.out / "replay/step-2/rank-1/state")
        self.assertIn("rank-1", self.replay("--rank", 1, code=4).stderr)

    def test_a_folder_that_cannot_be_written_does_not_end_the_run(self):
        self.out.mkdir()
        (self.out / "replay").write_text("a file")
        r = self.train("--output", self.out, steps=3, config=self.config(**RECORD))
        self.assertIn("replay: the step is not recorded: ", r.stdout + r.stderr)
        self.assertTrue(any(p.name == "global_step3" for p in pathlib.Path(self.out).iterdir()))


if __name__ == "__main__":
    unittest.main(verbosity=2)
