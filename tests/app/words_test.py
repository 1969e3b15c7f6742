#!/usr/bin/env python3
"""Messages and documents name existing commands, every command is in the README, and the path from a step to a kernel matches
docs/architecture.md.
"""
import pathlib
import re
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
SOURCES = ("app", "checkpoint", "comm", "config_schema", "core", "data", "device", "kernels", "launcher", "model", "monitor", "offload", "optim",
           "pipeline", "plan", "python", "runtime", "tensor_parallel", "zero")
COMMAND = re.compile(r"(?<![\w\"#])(?<!import )cleave\s+([a-z][a-z_]*)|\bthe (?!same )([a-z]+) command\b")


def commands():
    table = (ROOT / "app/commands.h").read_text()
    return set(re.findall(r'^    \{"(\w+)",', table, re.M)) | {"help"}


def strings(source):
    """Returns the string literals of a C++ file; adjacent ones are joined."""
    source = re.sub(r"//[^\n]*", "", source)
    source = re.sub(r'"\s*\n\s*"', "", source)
    return re.findall(r'"((?:[^"\\\n]|\\.)*)"', source)


def code(document):
    """Returns the code in a Markdown file or script."""
    return re.findall(r"```.*?```|`[^`]+`", document, re.S)


def words_of(text):
    return [a or b for a, b in COMMAND.findall(text)]


def named():
    """Yields every "cleave WORD" in texts for users: (file, word)."""
    for folder in SOURCES:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in {".cpp", ".h", ".cu", ".cuh"}:
                yield from ((path, word) for text in strings(path.read_text()) for word in words_of(text))
    for path in [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "examples").rglob("*.md"))]:
        yield from ((path, word) for text in code(path.read_text()) for word in words_of(text))
    for path in sorted((ROOT / "scripts").glob("*.sh")):
        yield from ((path, word) for word in re.findall(r"bin/cleave +([a-z]\w*)", path.read_text()))


def without_lambdas(code):
    """Returns the code without lambda bodies, which other functions call."""
    while begin := re.search(r"\[(?:&|=|this)[^\]]*\][^{;]*\{", code):
        end, depth = begin.end(), 1
        while depth:
            depth += {"{": 1, "}": -1}.get(code[end], 0)
            end += 1
        code = code[:begin.start()] + code[end:]
    return code


def bodies(name):
    """Returns the bodies of all overloads of a function in runtime/ or model/."""
    sources = (path.read_text() for folder in ("runtime", "model") for path in sorted((ROOT / folder).rglob("*.cpp")))
    return "".join(body for text in sources for body in re.findall(rf"^\S.*\b{name}\([^;{{]*\{{\n(.*?)^\}}", text, re.M | re.S))


class Words(unittest.TestCase):
    def test_each_function_on_the_way_to_a_kernel_calls_the_next_one_itself(self):
        page = (ROOT / "docs/architecture.md").read_text()
        way = re.findall(r"`([\w:]+)", re.search(r"From step to kernel.*?:\n(.*?)\. ", page, re.S)[1])
        self.assertLessEqual(len(way), 14)
        calls = [name for name in way if "::" in name and not name.startswith("Stream")]
        self.assertGreater(len(calls), 8)
        for name, following in zip(calls, way[1:]):
            self.assertRegex(without_lambdas(bodies(name)), rf"\b{following.split('::')[-1]}\(", f"{name} calls {following}")

    def test_no_message_and_no_document_names_a_command_that_does_not_exist(self):
        found = list(named())
        self.assertGreater(len(found), 30)
        self.assertEqual([f"{path.relative_to(ROOT)}: cleave {word}" for path, word in found if word not in commands()], [])

    def test_every_command_is_in_the_readme(self):
        words = set(words_of((ROOT / "README.md").read_text()))
        self.assertEqual(commands() - {"help"} - words, set())


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
