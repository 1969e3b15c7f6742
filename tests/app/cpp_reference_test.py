#!/usr/bin/env python3
"""Tests the headers that scripts/cpp_reference.py writes for Doxygen."""
import pathlib
import re
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "scripts"))
import cpp_reference  # noqa: E402

HEADER = """// A thing in 50% of cases. Use:
//
//   Thing thing;  // <int>
#pragma once
// Forward declarations.
namespace cleave {
class Other;  // other.h
}  // namespace cleave

class Thing {
 public:
  // Returns `a` & b:
  // - one,
  //   or two
  int value() const {
    // not for readers
    return value_;  // nor this
  }
  int size = 0;  // of a
                 // thing

 private:
  // Floating.

  int value_;
};
"""
EXPECTED = r"""/** \file
A thing in 50\% of cases. Use:

\verbatim
  Thing thing;  // <int>
\endverbatim

*/
#pragma once
// Forward declarations.
namespace cleave {
class Other;  // other.h
}  // namespace cleave

/**
A thing in 50\% of cases. Use:

\verbatim
  Thing thing;  // <int>
\endverbatim

*/
class Thing {
 public:
  /**
Returns `a` \& b:
- one,
  or two

  */
  int value() const {
    // not for readers
    return value_;  // nor this
  }
  int size = 0;  ///< of a
                 ///< thing

 private:
  // Floating.

  int value_;
};
"""


def code(text):
    """Returns the lines of code without comments."""
    text = re.sub(r"/\*\*.*?\*/", "", text, flags=re.DOTALL)
    return [line for line in (re.sub(r"//.*", "", line).strip() for line in text.splitlines()) if line]


class CppReference(unittest.TestCase):
    maxDiff = None

    def test_comments_of_declarations_become_doxygens(self):
        self.assertEqual("\n".join(cpp_reference.converted("thing.h", HEADER.splitlines())) + "\n", EXPECTED)

    def test_code_stays_as_it_is(self):
        names = cpp_reference.headers()
        self.assertIn("model/layer.h", names)
        for name in names:
            text = (ROOT / name).read_text()
            self.assertEqual(code("\n".join(cpp_reference.converted(name, text.splitlines()))), code(text), name)


if __name__ == "__main__":
    unittest.main(verbosity=2)
