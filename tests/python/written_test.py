#!/usr/bin/env python3
"""Files saved by scripts of earlier versions are read: training resumes with the losses of an unbroken run."""

from __future__ import annotations

import json
import pathlib
import sys
import unittest

FIXTURES = pathlib.Path(__file__).resolve().parents[1] / "fixtures"
sys.path.insert(0, str(FIXTURES))
import make_written_fixtures  # noqa: E402


class Written(unittest.TestCase):
    def test_engines_resume(self) -> None:
        for version in sorted(p for p in (FIXTURES / "written").iterdir() if p.is_dir()):
            expected = json.loads((version / "expected.json").read_text())
            for name in ("module", "native"):
                with self.subTest(version=version.name, name=name):
                    losses = make_written_fixtures.script(version, name, 6, resume=version / name)
                    self.assertEqual(len(losses), 2)
                    for got, want in zip(losses, expected[name], strict=True):
                        self.assertAlmostEqual(got, want, delta=1e-4)


if __name__ == "__main__":
    unittest.main()
