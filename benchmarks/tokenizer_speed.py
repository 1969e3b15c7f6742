#!/usr/bin/env python3
"""Compares `cleave data tokenize` with the tokenizers library on texts in many scripts and code: ids and speed.

  tokenizer_speed.py CLEAVE [--megabytes N] [--vocab N] [--keep FOLDER]

Needs the package tokenizers. Trains byte-level BPE tokenizers with the expressions of GPT-2, Llama 3 and Qwen2 on the same texts: the
Python library, this project, the system's locales and documents, and generated words in Unicode scripts. Each document is one file or one
generated piece; both programs get the same documents in a .jsonl and return their ids. Prints one row per tokenizer and number of threads,
and exits with 1 if an id differs.
"""
import argparse
import array
import gzip
import json
import os
import pathlib
import random
import re
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests/fixtures"))


def files():
    yield from sorted(pathlib.Path(os.__file__).parent.rglob("*.py"))
    for folder in ("app", "core", "data", "docs", "kernels", "runtime", "tests", "text"):
        yield from sorted(p for p in (ROOT / folder).rglob("*") if p.suffix in {".cpp", ".h", ".md", ".py", ".cu"})
    for folder in ("/usr/share/i18n/locales", "/usr/share/doc", "/usr/share/perl", "/usr/include"):
        yield from sorted(p for p in pathlib.Path(folder).rglob("*") if p.is_file() and not p.is_symlink())


def read(path):
    try:
        data = path.read_bytes()
        return gzip.decompress(data) if path.suffix == ".gz" else data
    except (OSError, EOFError):
        return b""


BLOCKS = [(0x41, 0x24F), (0x300, 0x36F), (0x370, 0x3FF), (0x400, 0x52F), (0x531, 0x58F), (0x590, 0x5FF), (0x600, 0x6FF), (0x900, 0x97F), (0x980, 0x9FF), (0xB80, 0xBFF),
          (0xE00, 0xE7F), (0x10A0, 0x10FF), (0x1100, 0x11FF), (0x1200, 0x137F), (0x1780, 0x17FF), (0x1E00, 0x1FFF), (0x2000, 0x206F), (0x20A0, 0x2BFF),
          (0x3040, 0x30FF), (0x4E00, 0x9FFF), (0xAC00, 0xD7A3), (0xF900, 0xFAFF), (0xFB00, 0xFDFF), (0x1F300, 0x1FAFF), (0x20000, 0x200FF)]


def generated(rng):
    """Returns a piece in one to three scripts, with blanks, digits, marks, special tokens, and sometimes invalid bytes."""
    low_high = rng.sample(BLOCKS, rng.randint(1, 3))
    words = ["".join(chr(rng.randint(*rng.choice(low_high))) for _ in range(rng.randint(1, 9))) for _ in range(60)]
    out = []
    for _ in range(rng.randint(100, 600)):
        out.append(rng.choice(words) if rng.random() < 0.8 else rng.choice(["12", "3", "\n", "\n\n", "  ", "\t", "'s", "!?", "👩‍👩‍👧", "e\u0301", "<|endoftext|>", "<tool>", "\u00a0"]))
        out.append(rng.choice([" ", " ", " ", " ", "", ", ", ".\n", "-"]))
    data = "".join(out).encode()
    if rng.random() < 0.2:
        at = rng.randrange(len(data))
        data = data[:at] + bytes([rng.randrange(128, 256)]) + data[at + rng.randint(0, 2):]
    return data


def documents(megabytes):
    rng, out, size, wanted = random.Random(7), [], 0, megabytes * 1_000_000
    source = files()
    while size < wanted:
        data = generated(rng) if rng.random() < 0.35 and size > wanted / 20 else read(next(source, pathlib.Path("/nonexistent")))[:200_000]
        if not data and next(source, None) is None:
            data = generated(rng)
        text = data.decode("utf-8", errors="replace")
        if text:
            out.append(text)
            size += len(text.encode())
    return out


def train(expression, normalizer, texts, vocab):
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    import make_tokenizer_fixtures as fixtures
    t = Tokenizer(models.BPE(ignore_merges=expression == "llama3"))
    t.pre_tokenizer = {"gpt2": pre_tokenizers.ByteLevel(add_prefix_space=False), "llama3": fixtures.split(fixtures.LLAMA3),
                       "qwen2": fixtures.split(fixtures.QWEN2), "mistral": fixtures.split(fixtures.MISTRAL)}[expression]
    if normalizer:
        t.normalizer = normalizer
    t.decoder = decoders.ByteLevel()
    t.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=vocab, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
                                                     special_tokens=["<|endoftext|>"], show_progress=False))
    t.add_tokens(["<tool>"])
    return t


def by_library(path, texts, threads):
    """Returns seconds and the ids of each document; runs in a separate process, because the library reads its number of threads once."""
    code = ("import sys,json,time,array\nfrom tokenizers import Tokenizer\nt=Tokenizer.from_file(sys.argv[1])\n"
            "d=[json.loads(l)['text'] for l in open(sys.argv[2],encoding='utf-8')]\nb=time.perf_counter()\n"
            "e=t.encode_batch_fast(d,add_special_tokens=False)\ns=time.perf_counter()-b\n"
            "open(sys.argv[3],'wb').write(b''.join(array.array('i',x.ids+[0]).tobytes() for x in e))\nprint(s)")
    with tempfile.NamedTemporaryFile() as out:
        r = subprocess.run([sys.executable, "-c", code, path, texts, out.name], env=os.environ | {"RAYON_NUM_THREADS": str(threads)}, capture_output=True,
                           text=True, check=True)
        ids = array.array("i")
        ids.frombytes(pathlib.Path(out.name).read_bytes())
        return float(r.stdout), ids


def by_cleave(cleave, path, texts, threads, out):
    r = subprocess.run([cleave, "data", "tokenize", texts, out, "--tokenizer", path, "--threads", str(threads)], capture_output=True, text=True, check=True)
    data = pathlib.Path(out).read_bytes()
    ids = array.array("H" if int.from_bytes(data[:4], "little") == 20240520 else "I")
    ids.frombytes(data[1024:])
    return float(re.search(r" in ([\d.]+) s", r.stdout)[1]), ids


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cleave")
    parser.add_argument("--megabytes", type=int, default=24)
    parser.add_argument("--vocab", type=int, default=32000)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--keep")
    o = parser.parse_args()
    import tokenizers
    from tokenizers import normalizers
    folder = pathlib.Path(o.keep or tempfile.mkdtemp())
    folder.mkdir(exist_ok=True)
    texts = documents(o.megabytes)
    corpus = folder / "corpus.jsonl"
    with corpus.open("w", encoding="utf-8") as out:
        out.writelines(json.dumps({"text": t}, ensure_ascii=False) + "\n" for t in texts)
    size = sum(len(t.encode()) for t in texts)
    print(f"{len(texts)} documents, {size / 1e6:.1f} MB, vocabulary {o.vocab}, tokenizers {tokenizers.__version__}; MB/s of text")
    print("| tokenizer | threads | cleave | tokenizers | ratio | tokens | ids that differ |\n|---|---|---|---|---|---|---|")
    wrong = 0
    for name, normalizer in (("gpt2", None), ("llama3", None), ("qwen2", normalizers.NFC()), ("mistral", None)):
        path = folder / f"tokenizer_{name}.json"
        if not path.exists():
            train(name, normalizer, texts[::7], o.vocab).save(str(path))
        for threads in o.threads:
            theirs = ours = None
            a, b = [], []
            for _ in range(3):
                s, ours = by_cleave(o.cleave, str(path), str(corpus), threads, str(folder / "out.bin"))
                a.append(s)
                s, theirs = by_library(str(path), str(corpus), threads)
                b.append(s)
            differ = sum(x != y for x, y in zip(ours, theirs)) + abs(len(ours) - len(theirs))
            wrong += differ
            print(f"| {name} | {threads} | {size / 1e6 / min(a):.1f} | {size / 1e6 / min(b):.1f} | {min(b) / min(a):.2f} | {len(ours)} | {differ} |", flush=True)
    return wrong != 0


if __name__ == "__main__":
    sys.exit(main())
