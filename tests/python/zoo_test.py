"""70 kinds of modules train as in torch at ZeRO stages 0 to 3, on two ranks.

`CLEAVE_ZOO_TABLE=FILE` also writes the differences as a table.
"""

import os
import pathlib
import unittest

import ranks

STAGES = [0, 1, 2, 3]
BOUND = 1e-5  # relative above 1


class Zoo(unittest.TestCase):
    def test_modules_of_all_kinds_train_as_in_torch_at_every_stage(self) -> None:
        by_rank = ranks.answers(2, "zoo_cases", "at_stages", STAGES)
        self.assertEqual(len(by_rank[0]), 70)
        lines, equal = ["| module | " + " | ".join(f"stage {s}" for s in STAGES) + " |", "|---|" + "---|" * len(STAGES)], 0
        for kind, far in by_rank[0].items():
            worst = [
                max(pair) if all(isinstance(f, float) for f in pair) else str(pair[0]) for pair in zip(far, by_rank[1][kind], strict=True)
            ]
            equal += sum(isinstance(f, float) and f < BOUND for f in worst)
            lines.append(f"| {kind} | " + " | ".join(f"{f:.0e}" if isinstance(f, float) else f for f in worst) + " |")
            for stage, each in zip(STAGES, worst, strict=True):
                with self.subTest(kind=kind, stage=stage):
                    self.assertTrue(isinstance(each, float) and each < BOUND, each)
        if file := os.environ.get("CLEAVE_ZOO_TABLE"):
            pathlib.Path(file).write_text("\n".join([*lines, "", f"{equal} of {len(lines[2:]) * len(STAGES)} are equal to torch."]) + "\n")


if __name__ == "__main__":
    unittest.main(verbosity=2)
