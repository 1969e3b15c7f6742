#!/usr/bin/env python3
"""Texts through a tokenizer: tokenize, train, eval and generate, their cache, and errors."""
import json
import math
import re
import shutil
import struct
import unittest

from app_test import AppTest, ROOT

FIXTURES = ROOT / "tests/fixtures"
GPT2, LLAMA3, QWEN2 = (FIXTURES / f"tokenizer_{name}.json" for name in ("gpt2", "llama3", "qwen2"))


def ids_of(path):
    data = path.read_bytes()
    magic, _, count, vocab = struct.unpack("<4i", data[:16])
    return list(struct.unpack(f"<{count}{'H' if magic == 20240520 else 'I'}", data[1024:])), vocab


class Tokenizers(AppTest):
    def tokenize(self, text, *args, code=0, out="out.bin"):
        return self.run_cleave("data", "tokenize", text, self.dir / out, *args, code=code)

    def write(self, name, text):
        path = self.dir / name
        path.write_text(text)
        return path

    def saved(self, *args, **kwargs):
        self.train("--tokenizer", LLAMA3, "--output", self.dir / "run", *args, **kwargs)
        return self.dir / "run"

    def test_a_folder_and_a_blend_of_texts_train_as_the_blend_of_their_token_files(self):
        folder = self.dir / "texts"
        folder.mkdir()
        whole = self.text.read_text()
        (folder / "a b.txt").write_text(whole[:12000])
        (folder / "c.jsonl").write_text("".join(json.dumps({"text": whole[i:i + 500]}) + "\n" for i in range(12000, 20000, 500)))
        sizes = {path: path.stat().st_size for path in sorted(folder.iterdir())}
        for number, path in enumerate(sizes):
            self.tokenize(path, "--tokenizer", GPT2, out=f"{number}.bin")

        def list_of(name, weights, tokens):
            lines = [f"{w} {self.dir / f'{i}.bin' if tokens else path}\n" for i, (path, w) in enumerate(zip(sizes, weights))]
            (self.dir / name).write_text("".join(lines))
            return f"@{self.dir / name}"

        def losses(data):
            self.text = data
            return self.losses("--tokenizer", GPT2, "--eval_data", data, ranks=2)

        for texts, tokens in [(folder, list_of("sizes.txt", sizes.values(), True)), (folder / "*", list_of("sizes.txt", sizes.values(), True)),
                              (list_of("texts.txt", (1, 3), False), list_of("tokens.txt", (1, 3), True))]:
            self.assertEqual(losses(texts), losses(tokens))

    def test_token_files_have_the_ids_of_the_tokenizers_library(self):
        import base64
        cases = json.loads((FIXTURES / "tokenizer_texts.json").read_text())
        for name in ("gpt2", "qwen2"):
            texts = [base64.b64decode(t) for t in cases["texts"]]
            rows = [(t.decode(), row["ids"]) for t, row in zip(texts, cases[name]) if t.decode("utf-8", errors="ignore").encode() == t]
            lines = self.write("texts.jsonl", "".join(json.dumps({"text": t}) + "\n" for t, _ in rows))
            for threads in (1, 3):
                r = self.tokenize(lines, "--tokenizer", FIXTURES / f"tokenizer_{name}.json", "--threads", threads)
                self.assertIn(f"{len(rows)} documents", r.stdout)
                ids, vocab = ids_of(self.dir / "out.bin")
                self.assertEqual(ids, [i for _, row in rows for i in row + [0]])
                self.assertGreater(vocab, max(ids))

    def test_tokens_in_files_writable_by_others_are_not_read(self):
        run = lambda *args, **more: self.train("--tokenizer", GPT2, *args, ranks=1, steps=1, **more).stderr
        self.assertIn("tokenized in", run())
        cache = self.dir / "cache" / "cleave"
        self.assertEqual(cache.stat().st_mode & 0o777, 0o700)
        self.assertIn("uses tokens of an earlier run", run())
        for tokens in cache.glob("*.bin"):
            tokens.chmod(0o666)
        self.assertIn("tokenized in", run())
        cache.chmod(0o777)
        self.assertIn("other users can write to the folder for tokens", run(code=2))
        self.assertIn("tokenized in", run("--output", self.dir / "out"))

    def test_a_text_is_tokenized_once_and_again_when_it_or_the_tokenizer_changed(self):
        made = "tokenized in"
        run = lambda tokenizer, **more: self.train("--tokenizer", tokenizer, ranks=2, steps=1, **more).stderr
        self.assertIn(made, run(GPT2))
        again = run(GPT2)
        self.assertNotIn(made, again)
        self.assertIn("uses tokens of an earlier run", again)
        self.assertIn(made, run(QWEN2))
        with self.text.open("a") as text:
            text.write("more of it\n")
        self.assertIn(made, run(GPT2))
        self.assertEqual(len(list((self.dir / "cache/cleave").glob("text.txt.*.bin"))), 3)

    def test_an_indexed_data_set_knows_the_documents_of_a_text_and_inspect_shows_them(self):
        texts = ["hello world, light", "second one", "the third document is longer"]
        lines = self.write("texts.jsonl", "".join(json.dumps({"text": t}) + "\n" for t in texts))
        self.tokenize(lines, "--tokenizer", LLAMA3)
        ids, _ = ids_of(self.dir / "out.bin")
        ends = [at + 1 for at, token in enumerate(ids) if token == 0]
        self.assertEqual(len(ends), len(texts))
        out = self.dir / "indexed.bin"
        self.assertIn("3 documents", self.run_cleave("data", "tokenize", lines, out, "--tokenizer", LLAMA3, "--format", "megatron").stdout)
        self.assertEqual([token for token, in struct.iter_unpack("<H", out.read_bytes())], ids)
        shown = self.run_cleave("data", "inspect", out, "--at", 0, "--count", len(ids), "--tokenizer", LLAMA3).stdout
        documents = [line for line in shown.splitlines() if line.startswith("document ")]
        self.assertEqual(documents, [f"document {d}: tokens {begin} to {end - 1}"
                                     for d, (begin, end) in enumerate(zip([0, *ends], ends))])
        self.assertEqual("".join(re.findall(r" *[0-9]+ +[0-9]+  '(.*)'", shown)), "<|endoftext|>".join([*texts, ""]))
        # The text that training tokenizes itself can also be packed.
        self.text = self.write("many.jsonl", lines.read_text() * 40)
        self.train("--tokenizer", LLAMA3, "--pack", "--document_mask", "--output", self.dir / "packed", ranks=1)
        self.assertEqual(len(list((self.dir / "packed/tokens").glob("*.idx"))), 1)

    def test_a_token_file_of_the_text_trains_the_same(self):
        text = self.losses("--tokenizer", LLAMA3)
        self.tokenize(self.text, "--tokenizer", LLAMA3)
        self.text = self.dir / "out.bin"
        self.assertEqual(self.losses(), text)

    def test_a_models_folder_brings_its_tokenizer(self):
        folder = self.dir / "model"
        folder.mkdir()
        shutil.copy(FIXTURES / "llama_tiny.config.json", folder / "config.json")
        config = json.loads((folder / "config.json").read_text()) | {"vocab_size": 902, "max_position_embeddings": 64}
        (folder / "config.json").write_text(json.dumps(config))
        shutil.copy(LLAMA3, folder / "tokenizer.json")
        r = self.train("--init", "random", "--output", self.dir / "run", model=folder, ranks=1)
        self.assertEqual(len(list((self.dir / "run/tokens").glob("text.txt.*.bin"))), 1, r.stderr)

    def test_an_export_has_the_tokenizer_of_the_training_and_its_ids_for_any_model(self):
        llama = json.loads(LLAMA3.read_text())
        added = {token["content"]: token["id"] for token in llama["added_tokens"]}
        small = {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 64, "vocab_size": 904, "model_type": "gpt2"}

        def export(*args, **kwargs):
            run, out = self.dir / f"run {len(list(self.dir.iterdir()))}", self.dir / f"out {len(list(self.dir.iterdir()))}"
            self.train(*args, "--output", run, "--export", out, ranks=1, steps=1, **kwargs)
            return out, json.loads((out / "config.json").read_text())
        # A preset's shape, and a tokenizer.json alone under another name.
        out, config = export("--tokenizer", LLAMA3, model=self.write("gpt2.json", json.dumps(small)))
        self.assertEqual((out / "tokenizer.json").read_bytes(), LLAMA3.read_bytes())
        end = added["<|endoftext|>"]
        self.assertEqual(config["eos_token_id"], end)
        self.assertIsNone(config["pad_token_id"])
        self.assertEqual(json.loads((out / "tokenizer_config.json").read_text())["eos_token"], "<|endoftext|>")
        # Files next to the tokenizer are copied and identify its tokens.
        beside = self.dir / "tokenizer"
        beside.mkdir()
        shutil.copy(LLAMA3, beside / "tokenizer.json")
        names = list(added)
        (beside / "tokenizer_config.json").write_text(json.dumps({"eos_token": names[0], "bos_token": {"content": names[1]}, "pad_token": names[2]}))
        (beside / "chat_template.jinja").write_text("{{ messages }}")
        (beside / "chat_template.jinja").chmod(0o400)
        out, config = export("--tokenizer", beside, model=self.dir / "gpt2.json")
        self.assertEqual([config[f"{role}_token_id"] for role in ("eos", "bos", "pad")], [added[name] for name in names[:3]])
        for name in ("tokenizer_config.json", "chat_template.jinja"):
            self.assertEqual((out / name).read_bytes(), (beside / name).read_bytes())
            self.assertEqual((out / name).stat().st_mode, (self.dir / "gpt2.json").stat().st_mode, "that of new files")
        # After training with another tokenizer, the published model's tokenizer and ids are removed.
        published = out
        (published / "generation_config.json").write_text(json.dumps({"eos_token_id": 5}))
        config["eos_token_id"] = 5
        (published / "config.json").write_text(json.dumps(config))
        same, config = export(model=published)
        self.assertEqual(config["eos_token_id"], 5)
        self.assertTrue((same / "generation_config.json").exists())
        other, config = export("--tokenizer", QWEN2, model=published)
        self.assertEqual((other / "tokenizer.json").read_bytes(), QWEN2.read_bytes())
        self.assertNotEqual(config["eos_token_id"], 5)
        self.assertFalse((other / "generation_config.json").exists() or (other / "chat_template.jinja").exists())
        # Bytes have no such tokens, and the defaults of GPT-2 do not apply.
        out, config = export(model="tiny")
        self.assertEqual([config[f"{role}_token_id"] for role in ("eos", "bos", "pad")], [None, None, None])

    def test_generate_and_eval_use_the_checkpoints_tokenizer(self):
        run = self.saved(steps=20)
        prompt = "heaven and earth"
        args = ["generate", run, "--quiet", "--tokens", 8, "--seed", 3]
        text = self.run_cleave(*args, "--prompt", prompt).stdout
        self.assertTrue(text.startswith(prompt) and len(text) > len(prompt) + 8, text)
        self.assertEqual(self.run_cleave(*args, "--prompt", prompt, "--tokenizer", LLAMA3).stdout, text)
        two = self.write("prompts.txt", f"{prompt}\n\nwater upon\n")
        out = self.run_cleave(*args, "--prompts", two).stdout
        self.assertTrue(out.startswith(text), "the first prompt alone is the first of many")
        self.assertIn("\nwater upon", out)
        greedy = [*args, "--prompt", prompt, "--temperature", 0]
        likeliest = self.run_cleave(*greedy).stdout
        self.assertEqual(self.run_cleave(*args, "--prompt", prompt, "--top_p", 0).stdout, likeliest)
        added = likeliest[len(prompt):-1]
        stop = added[3:6]
        self.assertEqual(self.run_cleave(*greedy, "--stop", "never there", "--stop", stop).stdout.rstrip("\n").count(stop),
                         (prompt + added[:added.index(stop) + len(stop)]).count(stop))
        self.assertNotEqual(self.run_cleave(*greedy, "--repetition_penalty", 5).stdout, likeliest)

    def test_eval_prints_losses_per_token_byte_and_word(self):
        out = self.run_cleave("eval", self.saved(), "--data", self.text, "--quiet").stdout
        token = float(re.search(r"^loss (\S+) nats per token", out, re.M)[1])
        rows = {unit: (float(loss), float(p), int(tokens), int(n)) for loss, unit, p, tokens, n in
                re.findall(r"^loss (\S+) nats per (byte|word), perplexity per \w+ (\S+) \((\d+) tokens, (\d+)", out, re.M)}
        self.tokenize(self.text, "--tokenizer", LLAMA3)
        ids, _ = ids_of(self.dir / "out.bin")
        targets = len(ids) - 1
        text = self.text.read_text()
        for unit, number in (("byte", len(text)), ("word", len(text.split()))):
            loss, perplexity, tokens, n = rows[unit]
            self.assertEqual(tokens, targets)
            self.assertLess(abs(n - number), 20, "but for the first token")
            self.assertAlmostEqual(loss, token * targets / n, places=6)
            self.assertAlmostEqual(perplexity / math.exp(loss), 1, places=4)

    def test_another_tokenizer_than_the_checkpoints_is_a_warning_and_an_error_with_strict(self):
        run = self.saved()
        other = json.loads(LLAMA3.read_text())
        other["model"]["merges"].reverse()
        path = self.write("tokenizer.json", json.dumps(other))
        r = self.run_cleave("generate", run, "--tokenizer", path, "--tokens", 1)
        self.assertIn("differs from the checkpoint's", r.stderr)
        self.run_cleave("generate", run, "--tokenizer", path, "--tokens", 1, "--strict", code=2)
        more = ["--tokenizer", path, "--output", run]
        self.assertIn("--tokenizer: the ids changed (", self.train(*more, "--strict", steps=4, code=4).stderr)
        self.assertIn("warning: --tokenizer: the ids changed", self.train(*more, steps=4).stderr)

    def test_a_tokenizer_that_no_run_wrote_is_never_replaced(self):
        mine = self.dir / "mine"
        mine.mkdir()
        shutil.copy(QWEN2, mine / "tokenizer.json")
        (mine / "tokenizer_config.json").write_text("{}")
        before = {path.name: path.read_bytes() for path in mine.iterdir()}
        r = self.train("--tokenizer", LLAMA3, "--output", mine, ranks=1, code=2)
        self.assertIn(f"error: {mine}: contains another tokenizer (tokenizer.json), which would be replaced; choose another folder", r.stderr)
        self.assertEqual({path.name: path.read_bytes() for path in mine.iterdir() if path.is_file()}, before)
        self.train("--tokenizer", QWEN2, "--output", mine, ranks=1)  # the same tokenizer
        self.train("--tokenizer", LLAMA3, "--output", mine, "--resume", "never", ranks=1)  # a run's folder by now
        model = self.dir / "model"
        self.run_cleave("export", self.saved(), model)
        (self.dir / "other").mkdir()
        shutil.copy(QWEN2, self.dir / "other/tokenizer.json")
        self.assertIn("contains another tokenizer", self.run_cleave("import", model, self.dir / "other", code=2).stderr)

    def test_a_missing_or_too_large_tokenizer_is_an_error_before_anything_starts(self):
        shutil.copy(FIXTURES / "llama_tiny.config.json", self.dir / "config.json")
        vocab = json.loads((self.dir / "config.json").read_text())["vocab_size"]
        r = self.train("--tokenizer", LLAMA3, model=self.dir / "config.json", code=2)
        self.assertIn(f"got 902 ids, but --model {self.dir / 'config.json'} has a vocabulary of {vocab}", r.stderr)
        self.assertFalse((self.dir / "cache").exists())
        self.assertIn("does not exist; give a tokenizer.json", self.train("--tokenizer", "nowhere.json", code=2).stderr)
        run = self.dir / "bytes"
        self.train("--output", run, ranks=1)
        self.assertIn("vocabulary of 256", self.run_cleave("generate", run, "--tokenizer", GPT2, code=2).stderr)

    def test_ids_without_a_tokenizer_are_not_converted_to_text(self):
        self.tokenize(self.text, "--tokenizer", GPT2)
        self.text = self.dir / "out.bin"
        self.train("--output", self.dir / "run", ranks=1)
        self.assertIn("pass --tokenizer FILE", self.run_cleave("generate", self.dir / "run", code=2).stderr)
        self.run_cleave("generate", self.dir / "run", "--tokenizer", GPT2, "--prompt", "light", "--tokens", 2)
        self.assertNotIn("a word", self.run_cleave("eval", self.dir / "run", "--data", self.text).stdout)

    def test_chats_are_errors_with_their_line(self):
        chats = self.write("chats.jsonl", json.dumps({"messages": [{"role": "user", "content": "light"}]}) + "\n")
        said = "chats.jsonl:1: is a chat under the key 'messages' (expected a string under 'text'"
        r = self.tokenize(chats, "--tokenizer", GPT2, code=7)
        self.assertIn(said, r.stderr)
        self.assertFalse((self.dir / "out.bin").exists() or (self.dir / "out.bin.partial").exists())
        self.text = chats
        self.assertIn(said, self.train("--tokenizer", GPT2, code=7).stderr)

    def test_outputs_do_not_overwrite_inputs(self):
        mine = self.dir / "tokenizer.json"
        shutil.copy(GPT2, mine)
        self.tokenize(self.text, "--tokenizer", mine, out="tokenizer.json", code=2)
        self.assertEqual(mine.read_bytes(), GPT2.read_bytes())


if __name__ == "__main__":
    unittest.main(verbosity=2)
