"""The package is typed, formatted, linted and small."""

import ast
import pathlib
import subprocess
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BESIDE = pathlib.Path(sys.executable).parent


def lines_of_code(text: str) -> int:
    """Returns the number of lines without docstrings."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef)
    docs = [node.body[0] for node in ast.walk(ast.parse(text)) if isinstance(node, documented) and ast.get_docstring(node)]
    return len(text.splitlines()) - sum((doc.end_lineno or doc.lineno) - doc.lineno + 1 for doc in docs)


class Style(unittest.TestCase):
    def passes(self, *command: str) -> None:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_lints(self) -> None:
        self.passes(str(BESIDE / "ruff"), "check", "python", "tests/python", "examples/python")

    def test_is_formatted(self) -> None:
        self.passes(str(BESIDE / "ruff"), "format", "--check", "python", "tests/python", "examples/python")

    def test_types_hold(self) -> None:
        self.passes(str(BESIDE / "mypy"), "--python-executable", sys.executable)

    def test_no_file_has_more_than_300_lines_without_docstrings(self) -> None:
        for path in (ROOT / "python/cleave").rglob("*.py"):
            self.assertLessEqual(lines_of_code(path.read_text()), 300, path.name)

    def test_importing_it_loads_neither_torch_nor_the_library(self) -> None:
        self.passes(sys.executable, "-c", "import sys, cleave; sys.exit('torch' in sys.modules or 'ctypes' in sys.modules)")


if __name__ == "__main__":
    unittest.main(verbosity=2)
