#!/usr/bin/env python3
"""Scripts write the curves and lines that their ds_config asks for. Files are read by other code: the csv module, and a decoder of event
files after TensorBoard's format (tensorflow/core/util/event.proto)."""

from __future__ import annotations

import csv
import json
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
# Replacements of the package wandb: one records its calls, the other cannot start a run.
FAKE_WANDB = """
import json, os, pathlib
def say(*call):
    with pathlib.Path(__file__).with_name("calls.jsonl").open("a") as file:
        print(json.dumps(call), file=file)
class Config:
    def update(self, values): say("config", values)
class Run:
    config = Config()
    def log(self, points, step): say("log", points, step)
    def finish(self): say("finish")
def init(**names):
    say("init", names)
    return Run()
"""
BROKEN_WANDB = """
def init(**names): raise RuntimeError("no key")
"""
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

    def test_weights_and_biases_receives_the_curves_on_rank_0(self) -> None:
        section = {"enabled": True, "project": "small", "group": "tests", "team": "us"}
        with tempfile.TemporaryDirectory() as folder:
            pathlib.Path(folder, "wandb.py").write_text(FAKE_WANDB)
            steps = ranks.answers(2, CASES, "to_wandb", folder, section)[0]
            calls = [json.loads(line) for line in pathlib.Path(folder, "calls.jsonl").read_text().splitlines()]
        self.assertEqual(calls[0], ["init", {"project": "small", "group": "tests", "entity": "us"}])
        self.assertEqual(calls[1][0], "config")
        self.assertEqual(calls[1][1]["zero_optimization.stage"], 1)
        self.assertEqual(calls[-1], ["finish"])
        logged = [call[1:] for call in calls if call[0] == "log"]
        curves = {name: {step: points[name] for points, step in logged if name in points} for name in {n for p, _ in logged for n in p}}
        for tag, column in (("train_loss", 1), ("lr", 2)):
            self.assertEqual(curves[f"Train/Samples/{tag}"], {row[0]: row[column] for row in steps})
        self.assertEqual(curves["Eval/accuracy"], {steps[-1][0]: 0.5})
        self.assertGreater(curves["checkpoint/save_bytes"][steps[-1][0]], 1000)
        self.assertGreater(sum(points.get("memory_planned_bytes/device/weights", 0) for points, _ in logged), 0)

    def test_weights_and_biases_without_its_package_names_the_command(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            for fake, says in (("raise ImportError", "run pip install wandb"), (BROKEN_WANDB, "wandb.enabled: no key; run wandb login")):
                pathlib.Path(folder, "wandb.py").write_text(fake)
                ended = ranks.run(2, CASES, "to_wandb", folder, {"enabled": True})
                self.assertEqual(ended.code, 2, ended.output)
                self.assertIn(says, ended.output)

    def test_an_mlflow_run_of_a_script_has_its_steps_memory_checkpoints_and_warnings(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            ended = ranks.run(2, CASES, "reported", folder)
            self.assertEqual(ended.code, 0, ended.output)
            (run,) = (path.parent for path in pathlib.Path(folder).glob("0/*/meta.yaml"))
            metrics = {
                str(path.relative_to(run / "metrics")): path.read_text().split() for path in (run / "metrics").rglob("*") if path.is_file()
            }
            self.assertEqual(metrics["loss"][2], "1")
            for name in ("memory_planned_bytes/device/weights", "memory_live_bytes/device/weights", "memory_peak_bytes/device/weights"):
                self.assertGreater(float(metrics[name][1]), 0, name)
            saved = sum(path.stat().st_size for path in pathlib.Path(folder, "saved/global_step1").rglob("*") if path.is_file())
            self.assertAlmostEqual(float(metrics["checkpoint/save_bytes"][1]), saved, delta=0.5 * saved)  # files of the script follow
            self.assertIn("checkpoint/load_seconds", metrics)
            self.assertEqual((run / "params/zero_optimization.stage").read_text(), "1")
            self.assertEqual((run / "tags/mlflow.source.name").read_text().rsplit("/", 1)[-1], "ranks.py")
            self.assertIn("no_such_section", (run / "artifacts/warnings.txt").read_text())
            self.assertIn("status: 3", (run / "meta.yaml").read_text())

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
