#!/usr/bin/env python3
"""Files saved by scripts of earlier versions are read: training resumes with the losses of an unbroken run."""

from __future__ import annotations

import pathlib
import sys
import tempfile
import unittest

FIXTURES = pathlib.Path(__file__).resolve().parents[1] / "fixtures"
sys.path.insert(0, str(FIXTURES))
import make_written_fixtures  # noqa: E402


class Written(unittest.TestCase):
    def test_engines_resume(self) -> None:
        for version in make_written_fixtures.VERSIONS:
            with tempfile.TemporaryDirectory() as folder:
                expected = make_written_fixtures.unpack(version, pathlib.Path(folder))
                for name in ("module", "native"):
                    with self.subTest(version=version.name, name=name):
                        losses = make_written_fixtures.script(pathlib.Path(folder), name, 6, resume=pathlib.Path(folder, name))
                        self.assertEqual(len(losses), 2)
                        for got, want in zip(losses, expected[name], strict=True):
                            self.assertAlmostEqual(got, want, delta=1e-4)


if __name__ == "__main__":
    unittest.main()
