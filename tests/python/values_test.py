"""Client state returns unchanged from a checkpoint, and a file made to run code does not run it."""

import argparse
import base64
import collections
import contextlib
import dataclasses
import datetime
import enum
import io
import json
import os
import pathlib
import pickle
import random
import tempfile
import types
import unittest
import warnings
from typing import Any

import numpy
import torch
from cleave import CheckpointError, UsageError
from cleave.saved import Beside, beside

UTC = datetime.timezone.utc


class Phase(enum.Enum):
    WARM = "warm"


@dataclasses.dataclass(frozen=True)
class Arguments:
    lr: float
    layers: tuple[int, ...]


class Trap:
    """Creates a file when it is unpickled."""

    def __init__(self, file: str) -> None:
        self.file = file

    def __reduce__(self) -> Any:
        return os.mkdir, (self.file,)


def returned(state: dict[str, Any]) -> dict[str, Any]:
    """Returns client state from a checkpoint, through the text that the engine stores."""
    kept = json.loads(json.dumps(Beside(client_state=state).packed()))
    return beside(kept, "runs/x").client_state


def of_torch(state: dict[str, Any]) -> dict[str, str]:
    """Returns the format of earlier versions."""
    file = io.BytesIO()
    torch.save({"client_state": state}, file)
    return {"python": base64.b64encode(file.getvalue()).decode()}


VALUES: dict[str, Any] = {
    "plain": [None, True, 3, -0.5, "text", "\ud800 \N{SNOWMAN}", {"nested": {"a": []}}],
    "numbers": [2**200, float("inf"), -0.0, 5e-324, 1 / 3, 1 + 2j],
    "keys": {1: "one", (2, "x"): "two", None: 3, "!": "dict"},
    "containers": [(1, (2,)), {1, 2}, frozenset({"a"}), range(3, 9, 2), b"\0\xff", bytearray(b"xy")],
    "dicts": [collections.OrderedDict(b=1, a=2), collections.Counter("aab"), collections.defaultdict(list, {"a": [1]})],
    "args": argparse.Namespace(lr=1e-3, nested=argparse.Namespace(names=["a"])),
    "simple": types.SimpleNamespace(a=(1, 2)),
    "times": [datetime.datetime(2026, 1, 2, 3, 4, 5, 6, UTC), datetime.date(2026, 1, 2), datetime.timedelta(1, 2, 3), datetime.time(4, 5)],
    "paths": [pathlib.Path("/a/b"), pathlib.PurePath("c"), pathlib.Path(os.fsdecode(b"\xff"))],
    "torch": [torch.float32, torch.Size([2, 3]), torch.device("cuda", 1)],
    "random": [random.getstate(), numpy.random.default_rng(1).bit_generator.state],
}
TENSORS = [
    torch.arange(6).reshape(2, 3).t(),
    torch.tensor(3.5, dtype=torch.bfloat16),
    torch.zeros(0, 4),
    torch.tensor([True, False]),
    torch.randn(3, dtype=torch.complex64).conj(),
    torch.ones(2).to(torch.float8_e4m3fn),
    torch.get_rng_state(),
]
ARRAYS = [numpy.arange(6.0).reshape(2, 3), numpy.array(["a", "bc"]), numpy.zeros((0, 2)), numpy.array(3, "<M8[s]")]
SCALARS = [numpy.float64(0.1), numpy.int32(-4), numpy.bool_(True)]


class Values(unittest.TestCase):
    def setUp(self) -> None:
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))

    def test_values_return_as_they_were(self) -> None:
        got = returned(VALUES)
        self.assertEqual(got, VALUES)
        self.assertEqual(repr(got), repr(VALUES), "types, order and signs, too")
        self.assertEqual(got["dicts"][2]["new"], [])

    def test_tensors_and_arrays_return_bit_for_bit(self) -> None:
        got = returned({"tensors": TENSORS, "parameter": torch.nn.Parameter(torch.ones(2)), "arrays": ARRAYS, "scalars": SCALARS})
        for a, b in zip(got["tensors"], TENSORS, strict=True):
            self.assertEqual((a.dtype, a.shape), (b.dtype, b.shape))
            self.assertTrue(torch.equal(a.float() if a.element_size() == 1 else a, b.float() if b.element_size() == 1 else b))
        self.assertIs(type(got["parameter"]), torch.nn.Parameter)
        for c, d in zip(got["arrays"] + got["scalars"], ARRAYS + SCALARS, strict=True):
            self.assertEqual((type(c), c.dtype, c.shape), (type(d), d.dtype, d.shape))
            self.assertTrue(numpy.array_equal(c, d))
        random_state = numpy.random.get_state()
        numpy.random.set_state(returned({"state": random_state})["state"])
        self.assertTrue(numpy.array_equal(numpy.random.get_state()[1], random_state[1]))

    def test_states_of_schedules_of_torch_are_values(self) -> None:
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
        schedules = torch.optim.lr_scheduler
        made: list[Any] = [
            schedules.LambdaLR(optimizer, lambda step: 0.5),
            schedules.MultiStepLR(optimizer, [2, 2, 5]),
            schedules.OneCycleLR(optimizer, 0.1, 10, cycle_momentum=False),
            schedules.CyclicLR(optimizer, 0.1, 0.2, cycle_momentum=False),
            schedules.ReduceLROnPlateau(optimizer),
            schedules.SequentialLR(optimizer, [schedules.ConstantLR(optimizer), schedules.CosineAnnealingLR(optimizer, 4)], [2]),
        ]
        for schedule in made:
            kept = returned({"state": schedule.state_dict()})["state"]
            self.assertEqual(kept, schedule.state_dict(), type(schedule).__name__)
            schedule.load_state_dict(kept)

    def test_classes_of_the_script_return_as_plain_values_unless_they_are_allowed(self) -> None:
        state = {"phase": Phase.WARM, "arguments": Arguments(0.1, (1, 2))}
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            self.assertEqual(returned(state), {"phase": "warm", "arguments": argparse.Namespace(lr=0.1, layers=(1, 2))})
        self.assertIn("add_safe_globals([Phase])", str(said[0].message))
        with torch.serialization.safe_globals([Phase, Arguments]):
            self.assertEqual(returned(state), state)

    def test_values_that_cannot_be_saved_are_named_by_their_path(self) -> None:
        around: list[Any] = []
        around.append(around)
        for state, said in (
            ({"trainer": {"callbacks": [1, 2, print]}}, r"client_state\['trainer'\]\['callbacks'\]\[2\]: a function cannot be saved; "),
            ({"model": torch.nn.Linear(1, 1)}, r"client_state\['model'\]: a torch.nn.modules.linear.Linear cannot be saved"),
            ({"objects": numpy.array([print])}, r"client_state\['objects'\]: a numpy.ndarray cannot be saved"),
            ({"sparse": torch.eye(2).to_sparse()}, r"client_state\['sparse'\]: a torch.Tensor cannot be saved"),
            ({"made": collections.defaultdict(lambda: 1)}, r"client_state\['made'\]: a defaultdict with the factory"),
            ({"around": around}, "contains itself"),
        ):
            with self.assertRaisesRegex(UsageError, said):
                Beside(client_state=state).packed()

    def test_a_file_that_was_made_to_run_code_does_not(self) -> None:
        trap, ran = Trap(str(self.folder / "ran")), self.folder / "ran"
        file = io.BytesIO()
        pickle.dump(trap, file)
        said = r"runs/x: the client state cannot be read: it refers to posix.mkdir, which is not allowed; if you trust .*add_safe_globals"
        with self.assertRaisesRegex(CheckpointError, said):
            beside(of_torch({"x": trap}), "runs/x")
        with self.assertRaises(CheckpointError):
            beside({"python": base64.b64encode(file.getvalue()).decode()}, "runs/x")
        torch.save({"ds_version": "0.19", "args": trap}, self.folder / "mp_rank_00_model_states.pt")
        self.assertEqual(beside({}, str(self.folder)).client_state, {})
        for value in ("torch.load", "os.system"):
            for kind in ("dtype", "dataclass", "enum", "Trap", "__import__"):
                text = json.dumps({"client_state": {"x": {"!": kind, "class": value, "value": value}}})
                with warnings.catch_warnings(), self.subTest(kind=kind):
                    warnings.simplefilter("ignore")
                    with contextlib.suppress(CheckpointError):
                        self.assertEqual(beside({"python": text}, "x").client_state, {"x": value})
        self.assertFalse(ran.exists())

    def test_messages_move_no_cursor(self) -> None:
        text = json.dumps({"client_state": {"x": {"!": "enum", "class": "a.\x1b[2JB", "value": {"!": "dtype", "value": "\x1b[2J"}}}})
        with self.assertRaises(CheckpointError) as raised:
            beside({"python": text}, "x")
        self.assertNotIn("\x1b", str(raised.exception))
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            beside({"python": text.replace("dtype", "bytes").replace('"\\u001b[2J"}', '""}')}, "x")
        self.assertNotIn("\x1b", str(said[0].message))

    def test_client_state_of_earlier_versions_is_read(self) -> None:
        state = {key: VALUES[key] for key in ("plain", "numbers", "args", "simple", "times", "paths", "torch", "random")}
        state = {**state, "scalar": numpy.float32(0.5), "array": numpy.arange(3)}
        got = beside(of_torch(state), "x").client_state
        self.assertTrue(numpy.array_equal(got.pop("array"), state.pop("array")))
        self.assertEqual(got, state)
        torch.save({"iteration": 3, "args": VALUES["args"]}, self.folder / "mp_rank_00_model_states.pt")
        self.assertEqual(beside({}, str(self.folder)).client_state, {"iteration": 3, "args": VALUES["args"]})

    def test_old_torch_reads_no_pickles(self) -> None:
        version = torch.__version__
        self.addCleanup(setattr, torch, "__version__", version)
        torch.__version__ = type(version)("2.9.1")
        self.assertEqual(returned({"a": 1}), {"a": 1})
        with self.assertRaisesRegex(CheckpointError, "install torch 2.10 or newer"):
            beside(of_torch({"a": 1}), "x")


if __name__ == "__main__":
    unittest.main()
