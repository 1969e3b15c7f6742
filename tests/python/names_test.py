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
# Of deepspeed.accelerator.DeepSpeedAccelerator in 0.19.8, without builders of kernels and registration of memory.
MEMBERS = """is_synchronized_device use_host_timers resolves_data_dependency handles_memory_backpressure device_name device set_device
current_device current_device_name device_count synchronize random set_rng_state get_rng_state manual_seed manual_seed_all initial_seed
default_generator Stream stream current_stream default_stream Event empty_cache memory_allocated max_memory_allocated
reset_max_memory_allocated memory_cached max_memory_cached reset_max_memory_cached memory_stats reset_peak_memory_stats memory_reserved
max_memory_reserved total_memory available_memory is_bf16_supported is_fp16_supported is_fp64_supported supported_dtypes is_available
range_push range_pop lazy_call communication_backend_name is_triton_supported prefer_triton_grouped_mm is_current_stream_capturing
create_graph capture_to_graph replay_graph BFloat16Tensor ByteTensor DoubleTensor FloatTensor HalfTensor IntTensor LongTensor
pin_memory_alignment pin_memory is_pinned unpin_memory on_accelerator export_envs visible_devices_envs get_compile_backend _name"""


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
                    value = getattr(found, name)
                    if row.startswith("!"):
                        self.assertRaisesRegex(cleave.NotBuilt, "not supported; ", value)
                    else:
                        self.assertIsNotNone(value)

    def test_unsupported_names_are_errors_with_a_replacement_when_they_are_used(self) -> None:
        for name in (name for name, row in MODULES[""].items() if row.startswith("!")):
            value = getattr(cleave, name)
            self.assertNotIsInstance(torch.nn.Linear(1, 1), value)
            for use in (value, lambda value=value: value.from_config, type("Below", (value,), {})):
                with self.assertRaises(cleave.NotBuilt) as raised:
                    use()
                self.assertRegex(str(raised.exception), f"cleave.{name}: .* not supported; ")

    def test_a_choice_in_capitals_reads_as_in_deepspeed(self) -> None:
        script = (
            "import cleave; print(cleave.DeepSpeedConfig({'train_batch_size': 1, 'gradient_allreduce_op': 'SUM'}).gradient_allreduce_op)"
        )
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
        self.assertEqual(done.stdout.strip(), "sum", done.stderr)

    def test_errors_of_a_configuration_have_deepspeeds_name(self) -> None:
        self.assertIs(cleave.DeepSpeedConfigError, cleave.UsageError)

    def test_names_that_examples_and_libraries_import_are_found(self) -> None:
        lines = (pathlib.Path(__file__).resolve().parents[1] / "fixtures/deepspeed_names.txt").read_text().splitlines()[1:]
        self.assertGreater(len(lines), 150)
        for line in lines:
            module, _, name = line.partition(" ")
            with self.subTest(line):
                found: Any = importlib.import_module("deepspeed")
                at = ["deepspeed"]
                for part in [*module.split(".")[1:], *filter(None, [name])]:
                    at.append(part)
                    if "_why" in vars(found):  # not supported
                        break
                    found = getattr(found, part) if hasattr(found, part) else importlib.import_module(".".join(at))

    def test_the_accelerator_has_deepspeeds_members(self) -> None:
        accelerator = cleave.get_accelerator()
        for name in MEMBERS.split():
            with self.subTest(name):
                self.assertTrue(hasattr(accelerator, name))
        with accelerator.device(0):
            accelerator.manual_seed_all(3)
            first = torch.rand(3, device=accelerator.current_device_name())
            accelerator.set_rng_state(accelerator.get_rng_state())
            accelerator.manual_seed(3)
            self.assertTrue(torch.equal(first, torch.rand(3, device=accelerator.current_device_name())))
        tensor = accelerator.FloatTensor([1, 2])
        self.assertTrue(accelerator.on_accelerator(tensor))
        self.assertGreater(accelerator.total_memory(), accelerator.available_memory())
        self.assertLessEqual(accelerator.memory_allocated(), accelerator.max_memory_allocated())
        accelerator.synchronize()
        accelerator.empty_cache()
        self.assertIn(torch.bfloat16, accelerator.supported_dtypes())

    def test_helpers_do_what_deepspeeds_do(self) -> None:
        net = torch.nn.Sequential(torch.nn.Sequential(torch.nn.Linear(2, 3)))
        helper = importlib.import_module("cleave.compression.helper")
        self.assertEqual(helper.recursive_getattr(net, "0.0.weight").shape, (3, 2))
        helper.recursive_setattr(net, "0.0", torch.nn.Linear(2, 5))
        helper.recursive_setattr(net, "1", torch.nn.Identity())
        self.assertEqual([helper.recursive_getattr(net, "0.0").out_features, len(net)], [5, 2])
        groups = importlib.import_module("cleave.moe.utils").split_params_into_different_moe_groups_for_optimizer
        for given in ({"params": [1], "name": "all"}, ({"params": [1]}, {"params": [2]})):
            self.assertEqual(groups(given), list(given) if isinstance(given, tuple) else [given])
        cleave.runtime.utils.set_random_seed(2**40)
        first = torch.rand(2)
        torch.manual_seed(2**40)
        self.assertTrue(torch.equal(first, torch.rand(2)))
        kinds = cleave.runtime.zero.offload_config.OffloadStateTypeEnum
        self.assertEqual([kinds.optim_states, kinds("lp_grads")], ["optim_states", kinds.lp_grads])

    def test_a_configuration_is_an_object(self) -> None:
        given = {"train_batch_size": 8, "gradient_accumulation_steps": 2, "fp16": {"enabled": True}}
        names = ["train_micro_batch_size_per_gpu", "train_batch_size", "fp16_enabled", "zero_enabled", "optimizer_name"]
        script = f"import cleave; c = cleave.DeepSpeedConfig({given}); print(*[getattr(c, name) for name in {names}])"
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
        self.assertEqual(done.stdout, "4 8 True False None\n", done.stderr)

    def test_on_device_creates_modules_there(self) -> None:
        with cleave.OnDevice(dtype=torch.float16, device="meta"):
            layer = torch.nn.Linear(2, 3)
        self.assertEqual([layer.weight.dtype, layer.weight.device.type], [torch.float16, "meta"])
        with cleave.OnDevice(dtype=torch.float16, device="meta", enabled=False):
            layer = torch.nn.Linear(2, 3)
        self.assertEqual([layer.weight.dtype, layer.weight.device.type], [torch.float32, "cpu"])

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

    def test_non_reentrant_checkpointing_trains_a_layer_whose_input_has_no_gradient(self) -> None:
        from deepspeed.runtime.activation_checkpointing.checkpointing import non_reentrant_checkpoint

        layer, calls = torch.nn.Linear(3, 2), []
        layer.register_forward_pre_hook(lambda *_: calls.append(1))
        non_reentrant_checkpoint(layer, torch.ones(4, 3)).sum().backward()
        self.assertEqual((layer.bias.grad.tolist(), len(calls)), ([4, 4], 2))  # type: ignore[union-attr]
        default = inspect.signature(cleave.pipe.PipelineModule).parameters["activation_checkpoint_func"].default
        self.assertIs(default, non_reentrant_checkpoint)

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
