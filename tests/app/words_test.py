#!/usr/bin/env python3
"""Messages and documents name commands that exist, and every command is in the README."""
import pathlib
import re
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
SOURCES = ("app", "capi", "checkpoint", "comm", "config", "core", "data", "device", "kernels", "launcher", "model", "monitor", "offload", "optim",
           "pipeline", "plan", "runtime", "sequence_parallel", "tensor_parallel", "text", "zero")
COMMAND = re.compile(r"(?<![\w\"#])(?<!import )cleave\s+([a-z][a-z_]*)|\bthe ([a-z]+) command\b")


def commands():
    table = (ROOT / "app/commands.h").read_text()
    return set(re.findall(r'^    \{"(\w+)",', table, re.M)) | {"help"}


def strings(source):
    """The string literals of a C++ file, those that stand side by side as one."""
    source = re.sub(r"//[^\n]*", "", source)
    source = re.sub(r'"\s*\n\s*"', "", source)
    return re.findall(r'"((?:[^"\\\n]|\\.)*)"', source)


def code(document):
    """What a Markdown file shows as code, and a script says."""
    return re.findall(r"```.*?```|`[^`]+`", document, re.S)


def words_of(text):
    return [a or b for a, b in COMMAND.findall(text)]


def named():
    """Every "cleave WORD" in what users read: (file, word)."""
    for folder in SOURCES:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in {".cpp", ".h", ".cu", ".cuh"}:
                yield from ((path, word) for text in strings(path.read_text()) for word in words_of(text))
    for path in [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "examples").rglob("*.md"))]:
        yield from ((path, word) for text in code(path.read_text()) for word in words_of(text))
    for path in sorted((ROOT / "scripts").glob("*.sh")):
        yield from ((path, word) for word in re.findall(r"bin/cleave +([a-z]\w*)", path.read_text()))


class Words(unittest.TestCase):
    def test_no_message_and_no_document_names_a_command_that_does_not_exist(self):
        found = list(named())
        self.assertGreater(len(found), 30)
        self.assertEqual([f"{path.relative_to(ROOT)}: cleave {word}" for path, word in found if word not in commands()], [])

    def test_every_command_is_in_the_readme(self):
        words = set(words_of((ROOT / "README.md").read_text()))
        self.assertEqual(commands() - {"help"} - words, set())


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
