#!/usr/bin/env python3
"""Checks the English of the tree against the rules in CONTRIBUTING.md, "Writing".

    scripts/check_words.py                    checks the files in CHECKED, and the strings of the folders in STRINGS_CHECKED
    scripts/check_words.py --since REVISION   checks the lines that changed since a git revision, in all files
    scripts/check_words.py PATH...            checks files and folders
    scripts/check_words.py --count            prints how often the constructions occur in documents and comments

Reads Markdown outside code, C++ and CUDA comments and string literals, and Python comments, docstrings and string literals. Ends with 1 if
it finds something, and prints the place, the words and what to write.
"""
import argparse
import io
import pathlib
import re
import subprocess
import sys
import tokenize

ROOT = pathlib.Path(__file__).resolve().parent.parent
SUFFIXES = {".md", ".cpp", ".h", ".cu", ".cuh", ".py"}
SKIPPED = ("build", "tests/fixtures", "third_party", "benchmarks/results", ".venv")
CHECKED = ("README.md", "CHANGELOG.md", "SECURITY.md", *(f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md"))))
# Folders of C++: string literals are checked, comments are not.
STRINGS_CHECKED = ("app", "checkpoint", "comm", "config_schema", "core", "data", "device", "kernels", "launcher", "model", "monitor", "offload",
                   "optim", "pipeline", "plan", "python/capi", "runtime", "tensor_parallel", "zero")

# Constructions to avoid, and the advice to print.
RULES = [(re.compile(pattern, re.IGNORECASE), advice) for pattern, advice in (
    (r"\bmend(?:s|ed|ing)?\b", "fix"),
    (r"\b(?:stands?|stood|standing) still\b", "hang, hung"),
    (r"\b(?:goes|go|went|going) on\b(?! (?:a|the) )", "resume, continue"),
    (r"\bbeg[ia]ns? anew\b|\bbegun anew\b|\banew\b", "from scratch; again"),
    (r"\bpass(?:es|ed)? over\b", "skip"),
    (r"\b(?:is|are|was|were|be) refused\b", "error; fails with; is not supported"),
    (r"\b(?:is|are) (?:not )?built (?:beside|yet)\b|\bis not built\b", "is not supported; cannot be combined with"),
    (r"\bbehind\b", "after; in the background"),
    (r"\bbeside\b", "in addition to; next to; compared with"),
    (r"\bso many\b", "N; the number of"),
    (r"\b(?:is|are) there (?:already|twice)\b", "already exists; duplicate"),
    (r"\b(?:is|are) no (?!longer\b|more\b|less\b)\w+", "is not a; has no"),
    (r"\bof (?:its|their|one's|a program's|his) own\b", "its own X; separate"),
    (r"\bof (?:PyTorch|DeepSpeed|Hugging Face|transformers|Azure(?: ML)?|Megatron(?:-LM)?|torch|Trainer)'s\b", "a noun compound: a PyTorch script"),
    (r"\ba (?:script|module|tensor|model|loader) of (?:PyTorch|torch|Python)\b", "a noun compound: a PyTorch script"),
    (r"\btoo[.;]", "also, before the verb"),
    (r"\b(?:nobody|whoever|whosoever)\b", "no rank; the rank that"),
    (r"\b(?:lend|lends|lent|dwell|dwells)\b", "provide; stay"),
    (r"\bdear to\b", "expensive to"),
    (r"\bempty-handed\b|\bbare (?:machine|process|rank)\b", "clean, new"),
    (r"\bwithout a word\b|\bfor the others' sake\b|\bat the latest\b", "say what happens"),
    (r"\bby how much\b|\bhow many .{1,30}\b(?:is|are) to\b", "the amount; the number of"),
    (r"\bwhat (?:a|an|the|each|every|this|that|it|they|all|is|was|has|had|no|others|users?|ranks?)\b", "name the thing: a noun as subject or object"),
    (r"\b(?:expected|got|wanted|must be) a text\b(?! with)", "a string, as a type"),
    (r"\b(?:of|for|to|in|from) which\b|\bwhose\b", "a second sentence, or a noun compound"),
)]
QUESTION = re.compile(r"\bwhat\b[^.!;]*\?", re.IGNORECASE)


def markdown(text):
    """Yields (line, words) of prose, without code blocks, code spans, link targets and comments."""
    fenced = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif not fenced:
            yield number, re.sub(r"`[^`]*`|\]\([^)]*\)|<[^>]*>", " X ", line)


def cpp(text, comments=True):
    """Yields (line, words) of comments and of string literals with several words."""
    for number, line in enumerate(text.splitlines(), 1):
        code = line
        for literal in re.findall(r'"((?:[^"\\]|\\.)*)"', line):
            code = code.replace(f'"{literal}"', "")
            if literal.count(" ") > 1:
                yield number, literal
        if comments and "//" in code:
            yield number, code.split("//", 1)[1]


def python(text):
    """Yields (line, words) of comments, docstrings and strings with several words."""
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.COMMENT or (token.type == tokenize.STRING and token.string.count(" ") > 1):
                for offset, line in enumerate(token.string.splitlines()):
                    yield token.start[0] + offset, re.sub(r"`[^`]*`", " X ", line)
    except (tokenize.TokenError, IndentationError):
        return


READERS = {".md": markdown, ".py": python}


def words_of(path, comments):
    text = path.read_text(errors="replace")
    return READERS[path.suffix](text) if path.suffix in READERS else cpp(text, comments)


def findings(path, lines=None, comments=True):
    """Yields (line, words found, advice) in one file, or in some of its lines."""
    if path.name == pathlib.Path(__file__).name:
        return
    for number, words in words_of(path, comments):
        if lines is not None and number not in lines:
            continue
        if "|" in words and "instead of" in words.lower():
            continue
        for pattern, advice in RULES:
            if (found := pattern.search(words)) and not QUESTION.search(words[found.start():]):
                yield number, found[0], advice


def files(names):
    for name in names:
        path = ROOT / name
        yield from (sorted(p for p in path.rglob("*") if p.suffix in SUFFIXES) if path.is_dir() else [path])


def all_files():
    for path in sorted(ROOT.rglob("*")):
        if path.suffix in SUFFIXES and not str(path.relative_to(ROOT)).startswith(SKIPPED):
            yield path


def changed_lines(revision):
    """Returns the changed lines of each file since a revision."""
    diff = subprocess.run(["git", "diff", "--unified=0", "--no-color", revision, "--", "."], cwd=ROOT, capture_output=True, text=True, check=True)
    changed, path = {}, None
    for line in diff.stdout.splitlines():
        if line.startswith("+++ b/"):
            path = ROOT / line[6:]
        elif found := re.match(r"@@ -\S+ \+(\d+)(?:,(\d+))? @@", line):
            first, count = int(found[1]), int(found[2] or 1)
            changed.setdefault(path, set()).update(range(first, first + count))
    return {p: lines for p, lines in changed.items() if p and p.suffix in SUFFIXES and not str(p.relative_to(ROOT)).startswith(SKIPPED)}


def counts():
    """Returns occurrences per 10,000 words, relative clauses per sentence, and openings of comment blocks, for documents and comments."""
    documents = " ".join(words for path in all_files() if path.suffix == ".md" and path.name != "CHANGELOG.md" for _, words in markdown(path.read_text()))
    blocks, block, last = [], [], -1
    for path in all_files():
        if path.suffix not in {".md", ".py"}:
            for number, line in enumerate(path.read_text().splitlines()):
                if line.lstrip().startswith("//"):
                    if number != last + 1 and block:
                        blocks, block = [*blocks, " ".join(block)], []
                    block.append(line.lstrip()[2:].strip())
                    last = number
            if block:
                blocks, block = [*blocks, " ".join(block)], []
            last = -1
    rows = []
    for name, text in (("documents", documents), ("comments", " ".join(blocks))):
        words = len(re.findall(r"[A-Za-z']+", text))
        per = {word: 10_000 * len(re.findall(rf"\b{word}\b", text, re.IGNORECASE)) / words for word in ("what", "where", "behind")}
        sentences = len(re.findall(r"[.!?:](?:\s|$)", text))
        clauses = len(re.findall(r"\b(?:which|who|whom|whose)\b|\w+ that (?!the|it|they|this|a|an|is not|no)\w+", text)) / max(sentences, 1)
        rows.append((name, words, per, clauses))
    opening = sum(bool(re.match(r"(?:Of|What|Where|Whether|The same|As)\b", block)) for block in blocks) / max(len(blocks), 1)
    return rows, opening


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=pathlib.Path)
    parser.add_argument("--since", metavar="REVISION")
    parser.add_argument("--count", action="store_true")
    args = parser.parse_args()
    if args.count:
        rows, opening = counts()
        for name, words, per, clauses in rows:
            print(f"{name}: {words} words; per 10,000: " + ", ".join(f"{word} {n:.0f}" for word, n in per.items())
                  + f"; relative clauses per sentence: {clauses:.2f}")
        print(f"comment blocks that open with Of, What, Where, Whether, The same or As: {100 * opening:.0f} %")
        return 0
    if args.since:
        places = [(path, lines, True) for path, lines in changed_lines(args.since).items()]
    elif args.files:
        places = [(path, None, True) for path in files(map(pathlib.Path.resolve, args.files))]
    else:
        places = [(path, None, True) for path in files(CHECKED)] + [(path, None, False) for path in files(STRINGS_CHECKED)]
    found = 0
    for place in places:
        path = place[0]
        for number, written, advice in findings(*place):
            found += 1
            print(f"{path.relative_to(ROOT)}:{number}: '{written}': write {advice}")
    return int(found > 0)


if __name__ == "__main__":
    sys.exit(main())
