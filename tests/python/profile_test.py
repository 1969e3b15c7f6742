#!/usr/bin/env python3
"""Scripts print the times, the arithmetic and the collectives that their ds_config asks for. Times are bounded by those of the script,
arithmetic and sizes follow from the shapes."""

from __future__ import annotations

import pathlib
import re
import tempfile
import unittest
from typing import Any

import profile_cases
import ranks

CASES = "profile_cases"
LINEAR = 2 * profile_cases.ROWS * profile_cases.WIDTH**2  # operations of a product in a forward of Tall
ALWAYS = {"all layers", "(other)"}
UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20}


def times(line: str) -> dict[str, float]:
    """Returns the first rank's time of each column."""
    return {name: float(ms) for name, ms in re.findall(r"\| (\w+): ([\d.]+)", line)}


def rows(lines: list[str]) -> dict[str, list[str]]:
    """Returns the columns of each layer of a profile."""
    first = next(i for i, line in enumerate(lines) if line.startswith("layer "))
    parts = (re.split(r" {2,}|(?<=%) ", line.strip()) for line in lines[first + 1 :])
    return {name: [columns[0], *columns[-7:]] for name, *columns in parts if len(columns) == 8}


def calls(table: list[str]) -> dict[tuple[str, float], int]:
    """Returns the number of calls by collective and size in bytes."""
    found = {}
    for line in table:
        if match := re.match(r"(\w+) +([\d.]+) (B|KiB|MiB) +\d+ +(\d+) ", line):
            found[match[1], float(match[2]) * UNITS[match[3]]] = int(match[4])
    return found


class Times(unittest.TestCase):
    def check(self, stage: int, own: bool) -> None:
        with tempfile.TemporaryDirectory() as folder:
            first, second = ranks.answers(2, CASES, "timed", stage, own, folder)
            self.assertEqual(second["lines"], [])
            lines = [line for line in first["lines"] if line.startswith("time (ms)")]
            self.assertEqual(len(lines), 2, first["lines"])
            forwards = [float(line.split(",")[1]) for line in curve(folder, "forward")]
            self.assertEqual(len(forwards), 4)
            for at, line in enumerate(lines):
                self.assertRegex(line, r"fwd: [\d.]+ \[[\d.]+ to [\d.]+\] \| bwd: .* \| bwd_inner: .* \| bwd_allreduce: .* \| step: ")
                got, seconds = times(line), first["seconds"][2 * at : 2 * at + 2]
                self.assertGreaterEqual(got["fwd"], 2 * 1e3 * profile_cases.FORWARD_S)
                self.assertGreaterEqual(got["bwd_inner"], 2 * 1e3 * profile_cases.BACKWARD_S)
                self.assertGreaterEqual(got["bwd"], got["bwd_inner"])
                self.assertLessEqual(got["fwd"] + got["bwd"] + got["step"], 1e3 * sum(seconds) / 2 + 0.1)
                self.assertLessEqual(got["bwd_allreduce"], got["bwd"] + got["step"] + 0.1)
                self.assertAlmostEqual(got["fwd"], sum(forwards[2 * at : 2 * at + 2]) / 2, delta=0.01)

    def test_have_the_names_of_deepspeed_and_fit_in_the_step(self) -> None:
        for stage in (0, 3):
            for own in (False, True):
                self.check(stage, own)

    def test_of_pipelines_and_models_of_the_engine_have_the_same_names(self) -> None:
        for case in ("pipeline", "native"):
            lines = [line for line in ranks.answers(2, CASES, case)[0] if line.startswith("time (ms)")]
            self.assertEqual(len(lines), 2, case)
            for line in lines:
                self.assertLess({"fwd", "bwd", "bwd_inner", "bwd_allreduce", "step"} - times(line).keys(), {"bwd_allreduce"}, line)

    def test_of_unfinished_intervals_are_printed_at_the_end_on_rank_0(self) -> None:
        ended = ranks.run(2, CASES, "unfinished")
        self.assertEqual(ended.code, 0, ended.output)
        self.assertEqual([ended.output.count(text) for text in ("time (ms)", "collectives of rank 0")], [1, 1], ended.output)


def curve(folder: str, name: str) -> list[str]:
    return pathlib.Path(folder, f"job/Train_Samples_elapsed_time_ms_{name}.csv").read_text().splitlines()[1:]


class Profiles(unittest.TestCase):
    def profile(self, *args: Any, **section: Any) -> list[str]:
        return ranks.answers(1, CASES, "profiled", {"profile_step": 1, "top_modules": 0, **section}, *args)[0]  # type: ignore[no-any-return]

    def test_count_the_products_of_each_module_once(self) -> None:
        width = profile_cases.WIDTH
        for stage in (0, 3):
            lines = self.profile(False, stage)
            table = rows(lines)
            self.assertEqual(sum(line.startswith("layer ") for line in lines), 1)
            self.assertRegex("\n".join(lines), "after 1 steps; rank 0 of 1")
            # Two micro-batches. The first block computes no gradient of its input.
            for name, params, products in (("blocks.0.0", width**2 + width, 2), ("blocks.1.0", width**2 + width, 3), ("Tall", width**2, 3)):
                self.assertEqual(table[name][0], count(params), lines)
                self.assertEqual(table[name][2], f"{2 * products * LINEAR / 1e9:.3f}", (name, lines))
            forward, backward = (2 * n * LINEAR / 1e9 for n in (3, 5))
            self.assertIn(f"forward {forward:.3f} GFLOP, backward {backward:.3f} GFLOP", "\n".join(lines))
            self.assertEqual(table["blocks.0.1"][0], "0", "an activation")

    def test_count_a_recomputation_in_its_module(self) -> None:
        for stage in (0, 3):
            table = rows(self.profile(False, stage, True))
            for name, products in (("blocks.0.0", 3), ("blocks.1.0", 4), ("Tall", 3)):
                self.assertEqual(table[name][2], f"{2 * products * LINEAR / 1e9:.3f}", name)

    def test_merge_modules_below_the_depth(self) -> None:
        one, none = (rows(self.profile(module_depth=depth)) for depth in (1, 0))
        self.assertEqual(set(one) - ALWAYS, {"Tall", "blocks"})
        self.assertEqual(one["blocks"][2], f"{10 * LINEAR / 1e9:.3f}")
        self.assertEqual(set(none) - ALWAYS, set())
        two = rows(self.profile(module_depth=2))
        self.assertEqual(set(two) - ALWAYS, {"Tall", "blocks.0", "blocks.1"})

    def test_of_backwards_that_the_script_calls_have_no_backward(self) -> None:
        table = rows(self.profile(True))
        self.assertEqual([table["blocks.1.0"][2], table["blocks.1.0"][5]], [f"{2 * LINEAR / 1e9:.3f}", "0.00"])

    def test_go_to_a_file_and_list_kinds(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "profile.txt")
            lines = self.profile(output_file=str(path), top_modules=1, detailed=False)
            self.assertEqual(lines, [f"wrote the profile of a step to {path}"])
            text = path.read_text()
        self.assertIn("most arithmetic: blocks.*.* (", text)
        self.assertNotIn("blocks.0.0", text)

    def test_leave_the_numbers_unchanged(self) -> None:
        plain, seen = (ranks.answers(2, CASES, "weights", more) for more in ({}, {"flops_profiler": {"enabled": True}}))
        self.assertEqual(plain, seen)

    def test_of_pipelines_and_models_of_the_engine(self) -> None:
        stage = rows(ranks.answers(2, CASES, "pipeline")[0])
        self.assertGreater(len(stage), 2)
        model = rows(ranks.answers(2, CASES, "native")[0])
        self.assertLess({"h.0", "h.1"}, set(model))


def count(params: int) -> str:
    return str(params) if params < 10_000 else f"{params / 1e3:.0f} K"


class Collectives(unittest.TestCase):
    def test_have_the_sizes_of_the_gradients(self) -> None:
        for stage, op in ((0, "all_reduce"), (1, "reduce_scatter")):
            first, second = ranks.answers(2, CASES, "logged", stage, {})
            self.assertEqual([second["table"], second["end"], first["lines"]], [[], [], []])
            sizes = sum(size * count for (name, size), count in calls(first["table"]).items() if name == op)
            # Two steps; units are padded to equal shards of 32 bytes at most, and sizes are printed with two digits.
            least = 2 * 4 * first["params"]
            self.assertGreaterEqual(sizes, 0.99 * least, first["table"])
            self.assertLessEqual(sizes, 1.01 * (least + 2 * 8 * 64), first["table"])
            self.assertEqual(calls(first["end"]), calls(first["table"]))

    def test_are_selected_by_name_and_printed_one_by_one_on_request(self) -> None:
        made = {"prof_all": False, "prof_ops": ["reduce_scatter_tensor"], "verbose": True, "debug": True}
        first = ranks.answers(2, CASES, "logged", 2, made)[0]
        self.assertTrue(first["lines"])
        self.assertTrue(all(line.startswith("comm op: reduce_scatter of world: ") for line in first["lines"]), first["lines"])
        self.assertTrue(all("reduce_scatter of world: " in line for line in first["table"][2:]), first["table"])
        logged = sum(int(re.findall(r"B +2 +(\d+) ", line)[0]) for line in first["table"][2:])
        self.assertEqual(len(first["lines"]), logged)
        none = ranks.answers(2, CASES, "logged", 2, {"prof_all": False})[0]
        self.assertEqual([none["lines"], none["table"]], [[], []])


if __name__ == "__main__":
    unittest.main(verbosity=1)
