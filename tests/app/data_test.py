#!/usr/bin/env python3
"""Indexed data sets, blends and packed documents from the command line. The test writes the files with struct, from the description of the
format in docs/data.md. Usage: data_test.py CLEAVE
"""
import json
import os
import struct
import unittest

from app_test import AppTest, ROOT

MODEL = {"model_type": "llama", "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4,
         "num_key_value_heads": 2, "vocab_size": 256, "max_position_embeddings": 64, "rms_norm_eps": 1e-5}


def write_indexed(stem, documents, masks=None):
    stem.with_suffix(".bin").write_bytes(b"".join(struct.pack(f"<{len(d)}H", *d) for d in documents))
    lengths = [len(d) for d in documents]
    pointers = [2 * sum(lengths[:i]) for i in range(len(lengths))]
    stem.with_suffix(".idx").write_bytes(b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, len(lengths), len(lengths) + 1) +
                                         struct.pack(f"<{len(lengths)}i", *lengths) + struct.pack(f"<{len(lengths)}q", *pointers) +
                                         struct.pack(f"<{len(lengths) + 1}q", *range(len(lengths) + 1)))
    if masks:
        bits = [bit for mask in masks for bit in mask]
        bits += [0] * (-len(bits) % 8)
        stem.with_suffix(".mask").write_bytes(bytes(sum(bits[i + k] << k for k in range(8)) for i in range(0, len(bits), 8)))


class Data(AppTest):
    def setUp(self):
        super().setUp()
        os.chdir(self.dir)  # file names of a blend contain no blanks
        self.a = [[(d + 3 * t) % 256 for t in range(5 + d % 17)] for d in range(60)]
        self.masks = [[int(t % 4 != 1) for t in range(len(d))] for d in self.a]
        write_indexed(self.dir / "a", self.a, self.masks)
        write_indexed(self.dir / "b", [[(7 * d + t) % 256 for t in range(40)] for d in range(30)])
        (self.dir / "model.json").write_text(json.dumps(MODEL))
        (self.dir / "mix.txt").write_text("# two\n0.7 a.bin\n0.3 b\n")

    def tearDown(self):
        os.chdir(ROOT)
        super().tearDown()

    def run_on(self, data, *options, ranks=1, steps=4, code=0, **config):
        config = self.config(train_batch_size=8, gradient_accumulation_steps=8 // 2 // config.pop("data_ranks", 1), **config)
        metrics = self.dir / "metrics.jsonl"
        metrics.unlink(missing_ok=True)
        command = ["train", "--deepspeed_config", config, "--model", "model.json", "--data", data, "--seq_len", 16, "--steps", steps,
                   "--metrics", metrics, *options]
        done = self.run_cleave(*(["launch", "-n", ranks, "--"] if ranks > 1 else []), *command, code=code)
        if code:
            return done.stdout + done.stderr
        lines = [json.loads(line) for line in metrics.read_text().splitlines()]
        return [line["loss"] for line in lines if "event" not in line]

    def test_layouts_train_alike_on_packed_documents_of_a_blend(self):
        both = ["--pack", "--document_mask"]
        want = self.run_on("0.7 a.bin 0.3 b", *both)
        self.assertEqual(len(want), 4)
        for config in ({"zero_optimization": {"stage": 2}, "data_ranks": 2}, {"pipeline": {"stages": 2}}, {"sequence_parallel_size": 2},
                       {"tensor_parallel": {"autotp_size": 2}}):
            got = self.run_on("0.7 a.bin 0.3 b", *both, ranks=2, **config)
            for one, other in zip(got, want, strict=True):
                self.assertAlmostEqual(one, other, delta=1e-5 * other, msg=str(config))
        self.assertEqual(self.run_on("@mix.txt", *both), want)
        self.assertNotEqual(self.run_on("@mix.txt", "--pack"), want)
        self.assertNotEqual(self.run_on("@mix.txt"), want)

    def test_a_blend_is_resumed_in_its_middle(self):
        whole = self.run_on("@mix.txt", "--pack", steps=12)
        first = self.run_on("@mix.txt", "--pack", "--output", "run", steps=7)
        self.assertEqual(first + self.run_on("@mix.txt", "--pack", "--output", "run", steps=12), whole)

    def test_a_blend_is_evaluated_completely_in_order_with_any_weights(self):
        def evaluated(data, ranks=1, **config):
            self.run_on("a.bin", "--eval_data", data, ranks=ranks, steps=2, **config)
            lines = [json.loads(line) for line in (self.dir / "metrics.jsonl").read_text().splitlines()]
            return [line["validation_loss"] for line in lines if line.get("event") == "evaluation"][-1]

        for name, length in (("c", 16 * 6 + 1), ("d", 16 * 3 + 5)):  # 96 and 52 targets
            write_indexed(self.dir / name, [[(11 * t + len(name)) % 251 for t in range(length)]])
        each = [evaluated(name) for name in ("c", "d")]
        both = evaluated("0.2 c 0.8 d.bin")
        self.assertAlmostEqual(both, (96 * each[0] + 52 * each[1]) / 148, places=6)
        self.assertEqual(evaluated("5 c 1 d"), both)
        self.assertAlmostEqual(evaluated("5 c 1 d", ranks=2, data_ranks=2), both, places=4)
        self.assertIn("--eval_data: 'd' is not a weight; write weights and files in turn: \"0.7 a.bin 0.3 b.bin\"", self.run_on("a", "--eval_data", "1 c d 2", code=2))
        self.assertIn("--eval_data", self.run_on("a", "--eval_data", "1 c 2 d", "--trace", "c.idx", code=2))

    def test_changes_since_a_checkpoint_are_printed(self):
        self.run_on("@mix.txt", "--output", "run", steps=2)
        self.assertIn("--data: the weights of the sources changed ('[3,2]' now, '[7,3]'",
                      self.run_on("0.6 a.bin 0.4 b", "--output", "run", "--strict", code=4))
        self.assertIn("--pack is 'true' now and was 'false'", self.run_on("@mix.txt", "--pack", "--output", "run", "--strict", code=4))

    def test_data_are_split_by_documents_and_shown(self):
        self.run_cleave("data", "split", "a", "--train", "t", "--validation", "v.bin")
        write_indexed(self.dir / "wanted", self.a[9::10], self.masks[9::10])
        for end in ("bin", "idx", "mask"):
            self.assertEqual((self.dir / f"v.{end}").read_bytes(), (self.dir / f"wanted.{end}").read_bytes())
        self.assertIn("in 54 documents", self.run_cleave("data", "inspect", "t.idx").stdout)
        shown = self.run_cleave("data", "inspect", "a", "--at", 3, "--count", 4).stdout
        self.assertIn("in 60 documents, Megatron uint16 with a loss mask", shown)
        self.assertIn("documents: 5 to 21 tokens", shown)
        self.assertIn("document 0: tokens 0 to 4, from before\n         3        9\n         4       12\n"
                      "document 1: tokens 5 to 10\n         5        1\n         6        4  no loss\n", shown)
        (self.dir / "two.txt").write_text("a\nb")
        shown = self.run_cleave("data", "inspect", "two.txt", "--at", 0).stdout
        self.assertIn("         0       97  'a'\n         1       10  '\\x0a'\n         2       98  'b'\n", shown)
        self.assertIn("give 0 to 2", self.run_cleave("data", "inspect", "two.txt", "--at", 3, code=2).stderr)
        self.run_cleave("data", "split", "a", "--train", "a.bin", "--validation", "v", code=2)

    def test_lines_of_json_are_documents_to_every_command(self):
        texts = [f"text {d} " + "abc" * d for d in range(20)]
        for name in ("lines.jsonl", "lines.ndjson"):
            (self.dir / name).write_text("".join(json.dumps({"text": t, "other": "x" * 99}) + "\n\n" for t in texts))
            shown = self.run_cleave("data", "inspect", name, "--at", len(texts[0]) - 1, "--count", 2).stdout
            self.assertIn(f"{name}: {sum(map(len, texts))} tokens in 20 documents", shown)
            self.assertIn(f"documents: {len(texts[0])} to {len(texts[-1])} tokens", shown)
            self.assertIn("document 0: tokens 0 to 6, from before\n         6       32  ' '\n"
                          "document 1: tokens 7 to 16\n         7      116  't'\n", shown)
        self.run_cleave("data", "tokenize", "lines.jsonl", "lines.bin", "--format", "megatron")
        self.assertIn(f"{sum(map(len, texts))} tokens in 20 documents", self.run_cleave("data", "inspect", "lines.bin").stdout)
        self.assertIn("99.0 in the mean", self.run_cleave("data", "inspect", "lines.jsonl", "--jsonl_key", "other").stdout)
        self.assertIn(": no text under the key 'none'", self.run_cleave("data", "inspect", "lines.jsonl", "--jsonl_key", "none", code=7).stderr)
        self.run_cleave("data", "split", "lines.jsonl", "--train", "t.jsonl", "--validation", "v.jsonl")
        read = lambda name: [json.loads(line)["text"] for line in (self.dir / name).read_text().split("\n") if line]  # noqa: E731
        self.assertEqual(read("v.jsonl"), texts[9::10])
        self.assertEqual(read("t.jsonl"), [t for d, t in enumerate(texts) if d % 10 != 9])
        self.assertIn("ends in .jsonl", self.run_cleave("data", "split", "lines.jsonl", "--train", "t", "--validation", "v", code=2).stderr)
        (self.dir / "whole.txt").write_text("".join(texts))
        ngrams = lambda name: self.run_cleave("data", "ngrams", "--train", name, "--validation", name).stdout  # noqa: E731
        self.assertEqual(ngrams("lines.jsonl"), ngrams("whole.txt"))
        self.assertIn("--prompts", self.run_cleave("generate", "run", "--prompts", "lines.jsonl", code=2).stderr)

    def test_a_file_without_a_header_has_the_width_that_fits_or_that_is_given(self):
        ids = [(k * 7919) % 100000 for k in range(4000)]
        (self.dir / "wide.bin").write_bytes(struct.pack("<4000I", *ids))
        (self.dir / "narrow.bin").write_bytes(struct.pack("<4000H", *[i % 60000 for i in ids]))
        (self.dir / "wide.json").write_text(json.dumps(MODEL | {"vocab_size": 128256}))
        args = ["train", "--deepspeed_config", self.config(), "--model", "wide.json", "--seq_len", 16, "--steps", 1]
        for command in (["data", "inspect", "wide.bin"], [*args, "--data", "wide.bin"]):
            said = self.run_cleave(*command, code=2).stderr
            self.assertIn("wide.bin: the width of a token is ambiguous", said)
            self.assertIn("--token_bytes 2 or --token_bytes 4", said)
        self.assertIn("4000 tokens, header-less uint32", self.run_cleave("data", "inspect", "wide.bin", "--token_bytes", 4).stdout)
        self.assertIn("8000 tokens, header-less uint16", self.run_cleave("data", "inspect", "wide.bin", "--token_bytes", 2).stdout)
        shown = self.run_cleave("data", "inspect", "wide.bin", "--token_bytes", 4, "--at", 0, "--count", 3).stdout
        self.assertEqual([int(line.split()[1]) for line in shown.splitlines()[1:]], ids[:3])
        run = ["--output", "run", "--eval_data", "wide.bin"]
        self.assertIn("wide.bin: 4000 tokens, header-less uint32", self.run_cleave(*args, *run, "--data", "wide.bin", "--token_bytes", 4).stdout)
        self.assertIn("3999 targets", self.run_cleave("eval", "run", "--data", "wide.bin", "--token_bytes", 4).stdout)
        self.assertIn("--token_bytes", self.run_cleave("eval", "run", "--data", "wide.bin", code=2).stderr)
        self.assertIn("narrow.bin: 4000 tokens, header-less uint16", self.run_cleave(*args, "--data", "narrow.bin").stdout)
        self.assertIn("4000 tokens", self.run_cleave("data", "inspect", "narrow.bin").stdout)

    def test_masked_targets_are_not_evaluated(self):
        self.run_on("b", "--output", "run", steps=3)
        evaluate = ["eval", "run", "--data", "a", "--pack", "--document_mask", "--quiet"]
        masked = self.run_cleave(*evaluate).stdout
        (self.dir / "a.mask").unlink()
        self.assertNotEqual(self.run_cleave(*evaluate).stdout, masked)

    def test_bad_input_is_one_error_before_training(self):
        for data, code, parts in ((self.text, 7, ["text.txt", "--pack", "document"]), ("0.5 a.bin b.bin 0.5", 2, ["'b.bin'", "weight"]),
                                  ("1 nowhere.bin 1 b", 7, ["nowhere.bin"]), ("1 a.bin 0 b", 2, ["--data: weight 0", "above 0"])):
            said = self.run_on(data, "--pack", code=code)
            for part in parts:
                self.assertIn(part, said)
        index = self.dir / "a.idx"
        index.write_bytes(index.read_bytes()[:-3])
        self.assertIn("truncated", self.run_on("a", code=7))


if __name__ == "__main__":
    unittest.main()
