#!/usr/bin/env python3
"""The checkpoint that a run resumes from, the ones it removes, and its messages about changed runs."""
import json
import os
import shutil
import unittest

from app_test import version_2
from run_test import RunTest


class NothingLost(RunTest):
    # Selection of the checkpoint to resume from

    def test_without_latest_the_newest_whole_checkpoint_is_resumed_and_none_is_lost(self):
        self.train("--output", self.out, "--save_interval", 2, "--keep", 0, steps=6)
        (self.out / "latest").unlink()
        r = self.train("--output", self.out, "--keep", 2, "--resume", "auto", steps=8)
        self.assertIn("at step 6", r.stdout)
        self.assertIn("the file 'latest'", r.stderr)
        self.assertEqual(self.saved(), ["global_step6", "global_step8"])

    def test_a_kill_before_latest_names_the_newest_checkpoint_loses_no_steps(self):
        self.train("--output", self.out, "--save_interval", 2, "--keep", 0, steps=6)
        (self.out / "latest").rename(self.out / "latest.tmp")  # state between the two renames
        (self.out / "latest").write_text("global_step4\n")
        self.assertIn("global_step6", self.run_cleave("verify", self.out).stdout)
        r = self.train("--output", self.out, "--keep", 0, steps=6)
        self.assertIn("at step 6", r.stdout)
        self.assertIn("warning: a job was killed before 'latest' named its newest checkpoint, 'global_step6'", r.stderr)
        self.assertEqual((self.out / "latest").read_text(), "global_step6\n")
        # Between the two renames, the new checkpoint has no name yet: the previous one is the newest.
        (self.out / "global_step6").rename(self.out / ".tmp.global_step6")
        (self.out / "latest.tmp").write_text("global_step6\n")
        (self.out / "latest").write_text("global_step4\n")
        r = self.train("--output", self.out, "--keep", 0, steps=6)
        self.assertIn("at step 4", r.stdout)
        self.assertIn("'.tmp.global_step6'", r.stdout)
        # After a manual change of `latest`, the run resumes from there and says so.
        (self.out / "latest").write_text("global_step2\n")
        r = self.train("--output", self.out, "--keep", 0, steps=2)
        self.assertIn("at step 2", r.stdout)
        self.assertIn("warning: 'latest' names 'global_step2', so the resume skips newer checkpoints: 'global_step6', 'global_step4'", r.stderr)

    def test_a_damaged_latest_is_named_and_the_newest_whole_checkpoint_is_resumed(self):
        self.train("--output", self.out, "--save_interval", 2, ranks=1, steps=4)
        for text in (b"", b"\x1b[2J\xff" * 50, b"../elsewhere", b"global_step99\n"):
            (self.out / "latest").write_bytes(text)
            r = self.train("--output", self.out, ranks=1, steps=4)
            self.assertIn("at step 4", r.stdout)
            self.assertIn("latest", r.stderr)
            self.assertNotIn("\x1b", r.stderr)
            self.assertLess(len(r.stderr), 1000)

    def test_damaged_checkpoints_are_skipped_with_the_reason_on_every_rank(self):
        def flip(path):
            data = bytearray(path.read_bytes())
            data[-5] ^= 1
            path.write_bytes(data)
        faults = (lambda c: (c / "manifest.json").write_text("{"), lambda c: (c / "manifest.json").unlink(),
                  lambda c: (c / "shard-00001.safetensors").unlink(), lambda c: flip(c / "shard-00001.safetensors"),
                  lambda c: os.truncate(c / "shard-00000.safetensors", 1000))
        self.train("--output", self.out, "--save_interval", 2, steps=4)
        for ranks, fault in zip((1, 2, 1, 2, 1), faults):
            copy = self.dir / "copy"
            shutil.copytree(self.out, copy)
            fault(copy / "global_step4")
            r = self.train("--output", copy, ranks=ranks, steps=2)
            self.assertIn("global_step2 at step 2", r.stdout, r.stderr)
            self.assertEqual(r.stderr.count("'global_step4' is skipped:"), 1, r.stderr)
            self.assertIn("global_step4", os.listdir(copy))
            fault(copy / "global_step2")
            r = self.train("--output", copy, ranks=ranks, steps=5, code=4)
            self.assertIn("global_step", r.stderr)
            self.assertNotIn("global_step5", os.listdir(copy))
            shutil.rmtree(copy)

    def test_a_folder_with_a_missing_checkpoint_does_not_start_at_step_0(self):
        self.train("--output", self.out, ranks=1, steps=2)
        shutil.rmtree(self.out / "global_step2")
        r = self.train("--output", self.out, ranks=1, steps=2, code=4)
        self.assertIn("global_step2", r.stderr)
        self.train("--output", self.dir / "new", "--resume", "required", ranks=1, steps=2, code=4)
        self.train("--output", self.dir / "new", "--resume", "global_step1", ranks=2, steps=2, code=4)
        self.assertFalse((self.dir / "new").exists())

    def test_old_checkpoints_go_only_when_this_run_wrote_them(self):
        self.train("--output", self.out, "--save_interval", 2, "--keep", 0, ranks=1, steps=4)
        others = self.dir / "another"
        self.train("--output", others, "--seed", 7, ranks=1, steps=1)
        shutil.copytree(others / "global_step1", self.out / "best so far")
        for name in ("notes", "global_step0"):
            (self.out / name).mkdir()
            (self.out / name / "precious.txt").write_text("x")
        self.train("--output", self.out, "--save_interval", 1, "--keep", 1, ranks=1, steps=6)
        self.assertEqual(self.saved(), ["best so far", "global_step0", "global_step6", "notes"])
        # After a manual change of `latest`, newer checkpoints stay until the run reaches them.
        self.train("--output", self.out, "--save_interval", 1, "--keep", 0, ranks=1, steps=8)
        (self.out / "latest").write_text("global_step6\n")
        self.train("--output", self.out, "--keep", 1, ranks=1, steps=7)
        self.assertEqual(self.saved(), ["best so far", "global_step0", "global_step7", "global_step8", "notes"])

    def test_a_damaged_checkpoint_that_was_passed_over_is_not_one_of_those_kept(self):
        self.train("--output", self.out, "--save_interval", 2, "--keep", 0, ranks=1, steps=8)
        for step, cut in ((8, False), (6, True)):  # one is found by reading its bytes, one before
            shard = self.out / f"global_step{step}" / "shard-00000.safetensors"
            data = bytearray(shard.read_bytes())
            data[-5] ^= 1
            shard.write_bytes(data[:-100] if cut else data)
        (self.out / "latest").unlink()
        r = self.train("--output", self.out, "--keep", 2, ranks=1, steps=9)  # beyond the damaged ones
        self.assertIn("resumed", r.stdout)
        self.assertIn("at step 4", r.stdout)
        self.assertEqual(self.saved(), ["global_step4", "global_step6", "global_step8", "global_step9"])
        self.assertIn("'global_step8' is skipped:", r.stderr)
        self.assertIn("'global_step6' is skipped:", r.stderr)
        self.train("--output", self.out, "--keep", 2, ranks=1, steps=10)  # now there are two newer ones
        self.assertEqual(self.saved(), ["global_step10", "global_step6", "global_step8", "global_step9"])

    def test_remains_of_killed_jobs_are_removed_and_named_and_nothing_else(self):
        self.train("--output", self.out, "--save_interval", 2, "--keep", 0, ranks=2, steps=6)
        whole = self.out / "global_step6"
        for name in (".tmp.global_step8", ".old.global_step6", ".old.global_step4"):
            shutil.copytree(whole, self.out / name)
        shutil.rmtree(self.out / "global_step4")  # the folder above is then the only copy
        for name in ("global_step1", "global_step9"):  # a killed removal; a lost manifest
            shutil.copytree(whole, self.out / name)
            (self.out / name / "manifest.json").unlink()
        shutil.copytree(self.out / "global_step1", self.out / "global_step7")
        (self.out / "global_step7/shard-00000.json").write_text("{}")  # a killed save in its place
        (self.out / "global_step12").mkdir()
        for name in (".tmp.notes", "global_step0", "notes"):
            (self.out / name).mkdir()
            (self.out / name / "precious.txt").write_text("x")
        r = self.train("--output", self.out, "--keep", 0, ranks=2, steps=7)
        self.assertIn("at step 6", r.stdout)
        for name in (".tmp.global_step8", ".old.global_step6", "global_step1", "global_step12", "global_step7"):
            self.assertEqual(self.times_said(f"'{name}'", r.stdout), 1, r.stdout)
        self.assertEqual(self.saved(), [".old.global_step4", ".tmp.notes", "global_step0", "global_step2", "global_step6", "global_step7",
                                        "global_step9", "notes"])
        self.run_cleave("verify", self.out, "--tag", "global_step7")
        # The very first save was killed.
        for name, file in (".tmp.global_step1", "shard-00000.safetensors"), ("global_step2", "shard-00000.json"):
            (self.dir / "first" / name).mkdir(parents=True)
            (self.dir / "first" / name / file).write_text("x")
        (self.dir / "first/global_step2/shard-00000.safetensors").write_text("x")
        r = self.train("--output", self.dir / "first", ranks=1, steps=1)
        self.assertIn("'.tmp.global_step1', 'global_step2'", r.stdout)
        self.assertEqual(sorted(p.name for p in (self.dir / "first").iterdir() if p.is_dir()), ["global_step1"])

    def test_no_tag_leaves_the_folder(self):
        self.train("--output", self.out, ranks=1, steps=1)
        inside = self.dir / "inside"
        inside.mkdir()
        for tag in ("../out put/global_step1", str(self.out / "global_step1"), "..", "a\x1bb"):
            for r in (self.run_cleave("eval", inside, "--tag", tag, "--data", self.text, code=4),
                      self.train("--output", self.out, "--resume", tag, ranks=1, steps=2, code=4)):
                self.assertIn("is not the name of a checkpoint", r.stderr)
                self.assertNotIn("\x1b", r.stderr)
        (inside / "latest").write_text("../out put/global_step1")
        self.assertIn("expected the name", self.run_cleave("eval", inside, "--data", self.text, code=4).stderr)
        manifest = version_2(json.loads((self.out / "global_step1/manifest.json").read_text()))
        manifest["records"][0]["file"] = "../../text.txt"
        (self.out / "global_step1/manifest.json").write_text(json.dumps(manifest))
        self.assertIn("is not a valid shard name", self.run_cleave("eval", self.out, "--data", self.text, code=4).stderr)

    # Facts of the training

    def test_another_optimizer_seed_data_or_length_is_printed_with_both_values_and_an_error_with_strict(self):
        self.train("--output", self.out, ranks=2, steps=1)
        other = self.dir / "other.txt"
        other.write_bytes(self.text.read_bytes()[::-1])
        lion = self.config("lion.json", optimizer={"type": "Lion", "params": {"lr": 1e-4}})
        lamb = self.config("lamb.json", optimizer={"type": "Lamb", "params": {"lr": 1e-4}})
        for args, kwargs, parts in ((["--seed", 7], {}, ("--seed", "'7'", "'42'")),
                                    (["--seq_len", 16], {}, ("--seq_len", "'16'", "'32'")),
                                    (["--data", other], {}, ("other.txt", "text.txt")),
                                    ([], {"config": lion}, ('"Lion"', '"AdamW"')),
                                    ([], {"config": lamb}, ('"Lamb"', '"AdamW"'))):
            copy = self.dir / "copy"
            shutil.copytree(self.out, copy)
            command = ["train", "--deepspeed_config", kwargs.get("config") or self.config(), "--model", "tiny", "--steps", 2,
                       "--output", copy]
            given = dict(zip(args[::2], args[1::2]))
            for name, value in (("--data", self.text), ("--seq_len", 32)):
                given.setdefault(name, value)
            command += [x for pair in given.items() for x in pair]
            r = self.run_cleave(*command, "--strict", code=4)
            for part in parts:
                self.assertIn(part, r.stderr)
            self.assertNotIn("global_step2", os.listdir(copy))
            r = self.run_cleave(*command)
            self.assertIn("warning: ", r.stderr)
            for part in parts:
                self.assertIn(part, r.stderr)
            shutil.rmtree(copy)
        self.assertNotIn("warning", self.train("--output", self.out, "--strict", ranks=1, steps=2,
                                               config=self.config(train_micro_batch_size_per_gpu=4)).stderr)

    def test_optimizer_state_that_does_not_fit_is_an_error_unless_it_starts_from_scratch(self):
        sgd = self.config("sgd.json", optimizer={"type": "SGD", "params": {"lr": 1e-3, "momentum": 0.9}})
        for ranks in (1, 2):
            self.train("--output", self.out, config=sgd, ranks=ranks, steps=1)
            r = self.train("--output", self.out, ranks=ranks, steps=2, code=4)
            for part in ("exp_avg", "--reset_optimizer"):
                self.assertIn(part, r.stderr)
            self.assertEqual(self.saved(), ["global_step1"])
            r = self.train("--output", self.out, "--reset_optimizer", ranks=ranks, steps=2)
            self.assertIn("the optimizer starts from scratch", r.stdout)
            self.assertIn("at step 1", r.stdout)
            shutil.rmtree(self.out)


if __name__ == "__main__":
    unittest.main(verbosity=2)
