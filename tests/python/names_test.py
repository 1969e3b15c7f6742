"""Names that scripts and libraries import from DeepSpeed exist, or report that they are unsupported."""

import importlib
import inspect
import itertools
import os
import pathlib
import subprocess
import sys
import unittest
from typing import Any

import cleave
import torch
from cleave.compat import MODULES

IMPORTED = """
from deepspeed import DeepSpeedEngine, add_config_arguments, comm, init_distributed, initialize, zero
from deepspeed.accelerator import get_accelerator
from deepspeed.checkpoint.utils import clone_tensors_for_torch_save
from deepspeed.launcher.runner import DEEPSPEED_ENVIRONMENT_NAME
from deepspeed.ops.adagrad import DeepSpeedCPUAdagrad
from deepspeed.ops.adam import DeepSpeedCPUAdam, FusedAdam
from deepspeed.ops.lion import DeepSpeedCPULion, FusedLion
from deepspeed.runtime.activation_checkpointing import checkpointing
from deepspeed.runtime.base_optimizer import DeepSpeedOptimizer
from deepspeed.runtime.engine import DeepSpeedEngine as Same
from deepspeed.runtime.lr_schedules import VALID_LR_SCHEDULES
from deepspeed.runtime.utils import move_to_device
from deepspeed.runtime.zero.partition_parameters import GatheredParameters, Init, ZeroParamStatus
from deepspeed.utils import groups, logger, safe_get_full_fp32_param, set_z3_leaf_modules
import deepspeed
import deepspeed.comm as dist
assert Same is DeepSpeedEngine and deepspeed.runtime.engine.DeepSpeedEngine is Same
assert Init is deepspeed.zero.Init and dist is comm
assert deepspeed.__version__ == "0.19.8"
parts = deepspeed.__version_major__, deepspeed.__version_minor__, deepspeed.__version_patch__
assert ".".join(map(str, parts)) == deepspeed.__version__
assert deepspeed.__git_hash__ is None and deepspeed.__git_branch__ is None
"""


def _value(key: str, text: str) -> Any:
    """Returns a value of a schedule in the fixture."""
    if key == "warmup_type":
        return text
    number = int(text) if text.lstrip("-").isdigit() else float(text)
    return bool(number) if key in ("lr_range_test_staircase", "cycle_momentum") else number


class Names(unittest.TestCase):
    def test_clients_find_their_names(self) -> None:
        done = subprocess.run([sys.executable, "-c", IMPORTED], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_the_name_finds_the_package_of_its_clone(self) -> None:
        env = {**os.environ, "PYTHONPATH": str(pathlib.Path(__file__).resolve().parents[2] / "python" / "deepspeed_name")}
        done = subprocess.run([sys.executable, "-c", IMPORTED], capture_output=True, text=True, env=env)
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_every_row_of_the_table_has_an_object(self) -> None:
        for module, rows in MODULES.items():
            for name, row in rows.items():
                with self.subTest(f"{module}.{name}"):
                    found = importlib.import_module(f"cleave.{module}".rstrip("."))
                    if row.startswith("!"):
                        self.assertRaisesRegex(cleave.NotBuilt, "not supported", getattr, found, name)
                    else:
                        self.assertIsNotNone(getattr(found, name))

    def test_unsupported_names_are_errors_with_a_replacement(self) -> None:
        for name in (name for name, row in MODULES[""].items() if row.startswith("!")):
            with self.assertRaises(cleave.NotBuilt) as raised:
                getattr(cleave, name)
            self.assertRegex(str(raised.exception), "not supported; ")

    def test_schedules_that_scripts_make_have_deepspeeds_rates(self) -> None:
        lines = (pathlib.Path(__file__).resolve().parents[1] / "fixtures/lr_schedules.txt").read_text().splitlines()[1:]
        for described, rates in itertools.islice(zip(lines[::2], lines[1::2], strict=True), 0, None, 12):
            kind, lr, *pairs = described.split()
            values = {key: _value(key, text) for key, text in (pair.split("=") for pair in pairs)}
            parameter = torch.nn.Parameter(torch.zeros(1))
            optimizer = torch.optim.Adam([parameter], lr=float(lr))
            schedule = getattr(cleave.runtime.lr_schedules, kind)(optimizer, **values)
            for step, rate in enumerate(rates.split()[:12]):
                want = [float(number) for number in rate.split(":")]
                group = optimizer.param_groups[0]
                for got, expected in zip([group["lr"], *group["betas"]], want, strict=True):
                    self.assertAlmostEqual(got, expected, delta=1e-12 + 1e-9 * abs(expected), msg=f"{described}, step {step}")
                schedule.step()
        with self.assertRaisesRegex(cleave.UsageError, "unknown arguments warmup .expected some of total_num_steps"):
            cleave.runtime.lr_schedules.WarmupDecayLR(optimizer, 10, warmup=3)

    def test_schedules_keep_tensor_rates_and_their_position(self) -> None:
        rate = torch.tensor(0.1, dtype=torch.float64)
        optimizer = torch.optim.Adam([torch.nn.Parameter(torch.zeros(1))], lr=rate, betas=(0.8, 0.9))
        schedule = cleave.runtime.lr_schedules.WarmupCosineLR(optimizer, total_num_steps=20, warmup_num_steps=10, warmup_type="linear")
        schedule.step(5)
        self.assertIs(optimizer.param_groups[0]["lr"], rate)
        self.assertAlmostEqual(rate.item(), 0.05)
        self.assertAlmostEqual(schedule.get_lr_ratio(), 0.5)
        self.assertEqual([schedule.get_mom(), schedule.warmup_num_steps], [[(0.8, 0.9)], 10])

    def test_the_accelerator_pins_what_a_device_copies(self) -> None:
        tensor, accelerator = torch.zeros(2), cleave.accelerator.get_accelerator()
        self.assertEqual(accelerator.pin_memory(tensor, 1).is_pinned(), torch.cuda.is_available())

    def test_arguments_are_deepspeeds_and_no_others(self) -> None:
        for function, names in (
            (cleave.init_distributed, "dist_backend auto_mpi_discovery distributed_port verbose timeout init_method dist_init_required"),
            (cleave.checkpointing.configure, "mpu_ deepspeed_config partition_activations contiguous_checkpointing num_checkpoints"),
            (
                cleave.zero.Init,
                "module data_parallel_group mem_efficient_linear remote_device pin_memory config_dict_or_path config enabled",
            ),
            (cleave.DeepSpeedEngine.backward, "self loss retain_graph scale_wrt_gas"),
            (cleave.DeepSpeedEngine.compile, "self backend compile_kwargs schedule compiled_autograd_enabled"),
        ):
            self.assertEqual(" ".join(inspect.signature(function).parameters)[: len(names)], names)
            with self.assertRaisesRegex(TypeError, "nonsense"):
                function(nonsense=1)

    def test_an_unknown_name_is_an_attribute_error(self) -> None:
        for module in (cleave, cleave.utils, cleave.runtime.zero):
            with self.assertRaisesRegex(AttributeError, "has no nonsense"):
                _ = module.nonsense


if __name__ == "__main__":
    unittest.main(verbosity=2)
