#!/usr/bin/env python3
"""The checkpoint format, read by a second reader written from its description; inspect, verify and digest."""
import json
import shutil
import sys
import unittest

try:
    import numpy
    import xxhash
except ImportError as e:
    print(f"skipped: {e}; install python3-numpy and python3-xxhash", file=sys.stderr)
    sys.exit(77)

from app_test import AppTest
from read_checkpoint import Checkpoint, header_of

LAYOUTS = {"one rank": (1, {}),
           "stage 3": (3, {"zero_optimization": {"stage": 3}}),
           "columns": (2, {"tensor_parallel": {"autotp_size": 2}}),
           "pipe": (2, {"pipeline": {"stages": 2}, "zero_optimization": {"stage": 1}})}


def hash_of(data):
    return f"{xxhash.xxh3_64_intdigest(data):016x}"


def digest_of(tensors, kind):
    lines = ""
    for (_, name), values in sorted((key, v) for key, v in tensors.items() if key[0] == kind):
        lines += f"{name} [{', '.join(map(str, values.shape))}] {xxhash.xxh3_128_hexdigest(values.tobytes())}\n"
    return xxhash.xxh3_128_hexdigest(lines)


class CheckpointFormat(AppTest):
    def digests(self, *args):
        lines = self.run_cleave("digest", *args).stdout.splitlines()
        return {name: digits for digits, name in (line.split("  ") for line in lines)}

    def test_a_reader_written_from_the_description_finds_the_same_values_and_checksums(self):
        for name, (ranks, config) in LAYOUTS.items():
            with self.subTest(layout=name):
                out = self.dir / name
                self.train("--output", out, ranks=ranks, steps=2, config=self.config(**config))
                read = Checkpoint(out / "global_step2")
                shards = {r["file"] for r in read.manifest["records"]}
                self.assertEqual(len(shards), ranks)
                self.assertEqual(name == "columns", any("every" in r for r in read.manifest["records"]))
                tensors = read.tensors()
                want = self.digests(out)
                self.assertEqual(want, {("weights" if kind == "master" else kind): digest_of(tensors, kind)
                                        for kind in {kind for kind, _ in tensors}})
                self.assertEqual(list(want)[0], "weights")
                # Checks every checksum.
                text = read.text
                self.assertEqual(text[-4:], b'"\n}\n')
                self.assertEqual(hash_of(text[:-20] + b"0" * 16 + text[-4:]), read.manifest["xxh3"])
                for record in read.manifest["records"]:
                    values, block = read.stored(record).tobytes(), 4 * read.manifest["block"]
                    self.assertEqual(record["xxh3"], [hash_of(values[at:at + block]) for at in range(0, len(values), block)])
                for file, shard in read.manifest["shards"].items():
                    path = out / "global_step2" / file
                    self.assertEqual((path.stat().st_size, hash_of(header_of(path)[0])), (shard["bytes"], shard["header_xxh3"]))

    def test_a_resumed_run_has_the_digest_of_the_unbroken_one_and_rounding_changes_it(self):
        whole, broken = self.dir / "whole", self.dir / "broken"
        self.train("--output", whole, steps=4, config=self.config(zero_optimization={"stage": 2}))
        self.train("--output", broken, steps=2, config=self.config(zero_optimization={"stage": 2}))
        self.train("--output", broken, steps=4, config=self.config(zero_optimization={"stage": 1}))
        self.assertEqual(self.digests(whole), self.digests(broken / "global_step4"))
        self.assertNotEqual(self.digests(whole, "--tag", "global_step4"), self.digests(broken, "--tag", "global_step2"))
        self.assertNotEqual(self.digests(whole)["weights"], self.digests(whole, "--dtype", "bf16")["weights"])

    def test_inspect_lists_tensors_and_verify_names_faults_by_file_and_bytes(self):
        out = self.dir / "out"
        self.train("--output", out, steps=2)
        contents = json.loads(self.run_cleave("inspect", out, "--json").stdout)
        self.assertEqual(contents["state"]["step"], 2)
        self.assertEqual(contents["client"]["model"], "tiny")
        tensors = Checkpoint(out / "global_step2").tensors()
        self.assertEqual({(t["kind"], t["tensor"]): tuple(t["shape"]) for t in contents["tensors"]},
                         {key: values.shape for key, values in tensors.items()})
        self.assertEqual(contents["bytes"], sum(v.nbytes for v in tensors.values()))
        table = self.run_cleave("inspect", out).stdout
        self.assertIn("step 2, model tiny, optimizer AdamW", table)
        for kind, name in tensors:
            self.assertRegex(table, rf"(?m)^{kind} +{name} ")
        self.assertIn("every element once", self.run_cleave("verify", out).stdout)
        self.train("--output", out, steps=3)
        self.assertEqual(self.run_cleave("verify", out, "--all").stdout.count("every element once"), 2)

        shard = out / "global_step2" / "shard-00001.safetensors"
        data = bytearray(shard.read_bytes())
        at = len(data) - 100
        data[at] ^= 4
        shard.write_bytes(data)
        self.assertIn("global_step3 is complete", self.run_cleave("verify", out).stdout)
        every = self.run_cleave("verify", out, "--all", code=4)
        self.assertIn("global_step3 is complete", every.stdout)
        self.assertIn(f"{out / 'global_step2'} has 1 fault", every.stdout)
        self.assertIn("1 of the 2 checkpoints in", every.stderr)
        shutil.rmtree(out / "global_step3")
        (out / "latest").write_text("global_step2")
        r = self.run_cleave("verify", out, "--threads", 2, code=4)
        line, = r.stdout.splitlines()
        self.assertIn(str(shard), line)
        begin, end = (int(word.strip(",")) for word in line.split("bytes ")[1].split()[:3:2])
        self.assertTrue(begin <= at < end <= len(data) and end - begin <= 1 << 20, line)
        self.assertIn("has 1 fault", r.stderr)
        shutil.copy(out / "global_step2" / "shard-00000.safetensors", shard)  # of another rank
        self.assertIn("belongs to another checkpoint", self.run_cleave("verify", out, code=4).stdout)
        shard.unlink()
        self.assertIn(shard.name, self.run_cleave("verify", out, code=4).stdout)
        self.assertIn(shard.name, self.run_cleave("inspect", out, code=4).stderr)
        for command in ("inspect", "verify", "digest"):
            self.assertIn("the file 'latest'", self.run_cleave(command, self.dir, code=4).stderr)
            self.assertIn("global_step2", self.run_cleave(command, out, "--tag", "global_step3", code=4).stderr)

    def test_a_checkpoint_is_found_by_its_folder_and_by_its_tag(self):
        out = self.dir / "out"
        self.train("--output", out, "--save_interval", 1, ranks=1, steps=2)
        own = out / "global_step1"
        for command, *args in (("inspect",), ("verify", "--quiet"), ("digest", "--quiet"), ("eval", "--quiet", "--data", self.text),
                               ("generate", "--quiet", "--prompt", "light", "--tokens", 5)):
            wanted = self.run_cleave(command, out, "--tag", "global_step1", *args).stdout
            self.assertNotEqual(wanted, self.run_cleave(command, out, *args).stdout, command)
            for folder in (own, f"{own}/", f"{own}/."):
                self.assertEqual(self.run_cleave(command, folder, *args).stdout, wanted, command)
        for to, of in (("a", [own]), ("b", [out, "--tag", "global_step1"])):
            self.run_cleave("export", of[0], self.dir / to, *of[1:])
        self.assertEqual(*((self.dir / to / "model.safetensors").read_bytes() for to in "ab"))


if __name__ == "__main__":
    unittest.main()
