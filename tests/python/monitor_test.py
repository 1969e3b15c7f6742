#!/usr/bin/env python3
"""Scripts write the curves and lines that their ds_config asks for. Files are read by other code: the csv module, and a decoder of event
files after TensorBoard's format (tensorflow/core/util/event.proto)."""

from __future__ import annotations

import csv
import math
import os
import pathlib
import struct
import tempfile
import unittest
from collections.abc import Iterator
from typing import Any

import ranks

CASES = "monitor_cases"
TAGS = ["train_loss", "lr", "loss_scale", "grad_norm"]


def fields(message: bytes) -> Iterator[tuple[int, Any]]:
    """Yields number and value of each field of a protobuf message."""

    def varint(at: int) -> tuple[int, int]:
        value = shift = 0
        while True:
            byte = message[at]
            value |= (byte & 0x7F) << shift
            at, shift = at + 1, shift + 7
            if byte < 0x80:
                return value, at

    at = 0
    while at < len(message):
        key, at = varint(at)
        if key & 7 == 0:
            value, at = varint(at)
            yield key >> 3, value
        elif key & 7 == 2:
            size, at = varint(at)
            yield key >> 3, message[at : at + size]
            at += size
        else:
            size = {1: 8, 5: 4}[key & 7]
            yield key >> 3, message[at : at + size]
            at += size


def points(path: pathlib.Path) -> dict[str, list[tuple[int, float]]]:
    """Returns step and value of the points of each tag in an event file."""
    data, at, out = path.read_bytes(), 0, {}  # type: ignore[var-annotated]
    while at < len(data):
        (size,) = struct.unpack_from("<Q", data, at)
        event = dict(fields(data[at + 12 : at + 12 + size]))
        at += 12 + size + 4
        for number, value in fields(event.get(5, b"")):
            scalar = dict(fields(value)) if number == 1 else {}
            if 2 in scalar:
                out.setdefault(scalar[1].decode(), []).append((event.get(2, 0), struct.unpack("<f", scalar[2])[0]))
    return out


def rows(path: pathlib.Path) -> list[list[str]]:
    with path.open() as file:
        return list(csv.reader(file))


class Monitors(unittest.TestCase):
    def check(self, folder: str, name: str, want: list[tuple[int, float]]) -> None:
        table = rows(pathlib.Path(folder, "csv_monitor/job", name.replace("/", "_") + ".csv"))
        self.assertEqual(table[0], ["step", name.rsplit("/", 1)[-1]])
        (events,) = pathlib.Path(folder, "tensorboard/job").iterdir()
        drawn = points(events)[name]
        for written in ([(int(x), float(y)) for x, y in table[1:]], drawn):
            self.assertEqual([x for x, _ in written], [x for x, _ in want], name)
            for (_, got), (_, wanted) in zip(written, want, strict=True):
                self.assertTrue(math.isclose(got, wanted, rel_tol=1e-6), f"{name}: {got}, {wanted}")

    def test_rank_0_writes_the_curves_of_each_step_and_of_the_script(self) -> None:
        for stage in (0, 3):
            with tempfile.TemporaryDirectory() as folder:
                first, second = ranks.answers(2, CASES, "trained", folder, stage)
                self.assertEqual([first["enabled"], second["enabled"]], [True, False])
                self.assertEqual(first["rows"], second["rows"])
                for column, tag in enumerate(TAGS, 1):
                    self.check(folder, f"Train/Samples/{tag}", [(row[0], row[column]) for row in first["rows"]])
                self.check(folder, "Eval/accuracy", [(row[0], 0.5 * step) for step, row in enumerate(first["rows"])])

    def test_pipelines_and_models_of_the_engine_write_their_losses(self) -> None:
        for case in ("pipeline", "native"):
            with tempfile.TemporaryDirectory() as folder:
                losses = ranks.answers(2, CASES, case, folder)[0]
                table = rows(pathlib.Path(folder, "csv_monitor/job/Train_Samples_train_loss.csv"))
                for (_, got), loss in zip(table[1:], losses, strict=True):
                    self.assertTrue(math.isclose(float(got), loss, rel_tol=1e-6), case)

    def test_lines_about_steps_and_settings_are_printed_on_request_only(self) -> None:
        asked = {"steps_per_print": 2, "dump_state": True, "memory_breakdown": True}
        quiet, told = (ranks.run(2, CASES, "lines", more) for more in ({}, asked))
        self.assertEqual([quiet.code, told.code], [0, 0], quiet.output + told.output)
        self.assertNotIn("step=", quiet.output)
        self.assertRegex(told.output, r"step=2, skipped=0, lr=\[0\.\d+\], loss=\d\.\d+\n(.*\n)*.*step=4, skipped=0")
        self.assertEqual(told.output.count("step="), 2, "on rank 0, every second step")
        for step, times in ((1, 1), (2, 1), (3, 0), (4, 1)):
            self.assertEqual(told.output.count(f"memory of rank 0 after step {step} "), times)
        self.assertRegex(told.output, r"optimizer_state +\d")
        for text in ("steps_per_print = 2", "optimizer.params.lr = ", "effective values:"):
            self.assertEqual(told.output.count(text), 1, text)

    def test_a_file_that_hangs_delays_no_step(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            job = pathlib.Path(folder, "job")
            job.mkdir()
            os.mkfifo(job / "Train_Samples_train_loss.csv")  # opening it waits for a reader
            ended = ranks.run(2, CASES, "lines", {"csv_monitor": {"enabled": True, "output_path": folder, "job_name": "job"}})
        self.assertEqual(ended.code, 0, ended.output)
        self.assertEqual(ended.output.count("warning: csv_monitor: 4 events were not written"), 1, ended.output)

    def test_a_folder_that_cannot_be_made_is_an_error_of_all_ranks(self) -> None:
        with tempfile.NamedTemporaryFile() as file:
            for section in (
                {"tensorboard": {"enabled": True, "output_path": file.name}},
                {"csv_monitor": {"enabled": True, "output_path": file.name}},
                {"flops_profiler": {"enabled": True, "output_file": f"{file.name}/profile"}},
            ):
                ended = ranks.run(2, CASES, "lines", section)
                self.assertEqual(ended.code, 2, ended.output)
                self.assertIn(file.name, ended.output)


if __name__ == "__main__":
    unittest.main(verbosity=1)
