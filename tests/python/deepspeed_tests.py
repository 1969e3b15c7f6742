"""A pytest plugin that runs DeepSpeed's unit tests on the engine (scripts/run_deepspeed_tests.sh).

Names that their helpers import and the package does not have are replaced by a class that raises when it is used; such tests count as not
applicable. Ranks are processes forked from a server that has imported torch; a rank that fails ends the others.
"""

from __future__ import annotations

import collections
import enum
import importlib
import importlib.abc
import importlib.machinery
import json
import multiprocessing as mp
import os
import pkgutil
import queue
import re
import sys
import time
import traceback
from types import ModuleType
from typing import Any

import cleave
import cleave.compat
import cleave.ops
import deepspeed
import pytest
import torch
from cleave import schedules
from cleave.compat.accelerator import Accelerator

LIMIT_S = float(os.environ.get("CLEAVE_TEST_LIMIT_S", "60"))
ABSENT = "not a name of this package: "


class Absent(cleave.NotBuilt):
    """Use of a name that the package does not have."""


class _Kind(type):
    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return absent(f"{cls.__qualname__}.{name}")

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        raise Absent(ABSENT + cls.__mro__[list(cls.__mro__).index(Exception) - 1].__qualname__)

    def __iter__(cls) -> Any:
        return iter(())


def absent(name: str) -> Any:
    return _Kind(name.rpartition(".")[2], (Exception,), {"__qualname__": name, "__module__": "deepspeed"})


class OffloadDeviceEnum(str, enum.Enum):
    none, cpu, nvme = "none", "cpu", "nvme"


def required_torch_version(min_version: float | None = None, max_version: float | None = None) -> bool:
    have = tuple(int(n) for n in torch.__version__.split(".")[:2])
    least, most = (tuple(int(n) for n in str(v).split(".")) if v is not None else have for v in (min_version, max_version))
    return least <= have <= most


# Answers to helpers' questions about their environment, which do not depend on an engine.
GIVEN: dict[str, dict[str, Any]] = {
    "git_version_info": {"torch_info": {"version": "0.0", "cuda_version": "0.0", "nccl_version": "0.0", "hip_version": "0.0"}},
    "utils.torch": {"required_torch_version": required_torch_version},
    "runtime.zero.offload_config": {"OffloadDeviceEnum": OffloadDeviceEnum},
    "runtime.swap_tensor": {"MIN_SWAPPABLE_BYTES": 1 << 20},
    "accelerator": {"is_current_accelerator_supported": lambda: True},
    "runtime.lr_schedules": {"WARMUP_LOG_RATE": "log", "WARMUP_LINEAR_RATE": "linear"}
    | {name.upper(): name for given in schedules._ARGUMENTS.values() for name in given.split()}
    | {name: getattr(schedules, name) for name in ("LR_RANGE_TEST", "ONE_CYCLE", "WARMUP_LR", "WARMUP_DECAY_LR", "WARMUP_COSINE_LR")},
    "moe.utils": {"split_params_into_different_moe_groups_for_optimizer": lambda group: [group]},  # for models without experts
    "ops": {"__compatible_ops__": collections.defaultdict(lambda: True)},
}


class _Standing(ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        below = self.__name__.partition(".")[2]
        return GIVEN.get(below, {}).get(name) or absent(f"{self.__name__}.{name}")


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Import hook after the package's own: returns a module of absent names."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
        if fullname.startswith(("deepspeed.", "cleave.")):
            return importlib.machinery.ModuleSpec(fullname, self, is_package=True)
        return None

    def create_module(self, spec: Any) -> ModuleType:
        return _Standing(spec.name.replace("cleave.", "deepspeed.", 1))

    def exec_module(self, module: ModuleType) -> None:
        pass


def _install() -> None:
    for found in pkgutil.walk_packages(cleave.__path__, "cleave."):  # later, `from . import NAME` would find an absent name
        importlib.import_module(found.name)
    Accelerator.supported_dtypes = lambda self: [torch.float32, torch.float16, torch.bfloat16]  # type: ignore[attr-defined]
    Accelerator.is_synchronized_device = lambda self: True  # type: ignore[attr-defined]
    Accelerator.manual_seed_all = lambda self, seed: torch.manual_seed(seed)  # type: ignore[attr-defined]
    sys.meta_path.append(_Finder())
    for rows in cleave.compat.MODULES.values():
        for name in [name for name, row in rows.items() if row.startswith("!")]:
            del rows[name]
    for module in (cleave, deepspeed, cleave.ops, importlib.import_module("cleave.utils"), cleave.zero):
        _let_be_absent(module)
    listed = cleave.compat._Names.__getattr__

    def of_table(self: Any, name: str) -> Any:
        try:
            return listed(self, name)
        except AttributeError:
            if name.startswith("__"):
                raise
            below = self.__name__.partition(".")[2]
            return GIVEN.get(below, {}).get(name) or absent(f"deepspeed.{below}.{name}")

    cleave.compat._Names.__getattr__ = of_table  # type: ignore[method-assign]


def _let_be_absent(module: ModuleType) -> None:
    inner = getattr(module, "__getattr__", None)
    below = module.__name__.partition(".")[2]

    def get(name: str) -> Any:
        if name in GIVEN.get(below, {}):
            return GIVEN[below][name]
        try:
            if inner is not None:
                return inner(name)
        except AttributeError:
            pass
        if name.startswith("__"):
            raise AttributeError(name)
        return absent(".".join(filter(None, ("deepspeed", below, name))))

    module.__getattr__ = get  # type: ignore[method-assign]


_install()


# ---- ranks ----


def _on_rank(test: Any, rank: int, ranks: int, port: str, init_method: str, answers: Any) -> None:
    try:
        skipped = test._dist_run(rank, ranks, port, init_method)
        answers.put((rank, "skipped" if skipped else "passed", str(skipped)))
        test._dist_destroy()
    except BaseException as error:
        absents = isinstance(error, cleave.NotBuilt)
        said = f"{type(error).__name__}: {error}"
        answers.put((rank, "absent" if absents else "failed", said + "\n" + "".join(traceback.format_exception(error)[-3:])))
        answers.close()
        answers.join_thread()
        os._exit(1)


def _launch(self: Any, ranks: int, init_method: str) -> None:
    from unit.common import get_master_port

    context = mp.get_context("forkserver")
    context.set_forkserver_preload(["torch", "deepspeed_tests", "unit.common", "unit.simple_model"])
    answers, port = context.Queue(), get_master_port()
    processes = [context.Process(target=_on_rank, args=(self, r, ranks, port, init_method, answers)) for r in range(ranks)]
    for process in processes:
        process.start()
    said: dict[int, tuple[str, str]] = {}
    end = time.monotonic() + LIMIT_S
    while len(said) < ranks and time.monotonic() < end:
        try:
            rank, how, what = answers.get(timeout=0.2)
            said[rank] = how, what
            if how in ("failed", "absent"):
                end = min(end, time.monotonic() + 2)  # the others notice it, or are killed
        except queue.Empty:
            if all(not p.is_alive() for p in processes) and answers.empty():
                break
    for process in processes:
        process.join(5 if len(said) == ranks else 0)
        process.kill()
    worst = sorted(said.values(), key=lambda s: ["absent", "failed", "skipped", "passed"].index(s[0]))
    if worst and worst[0][0] == "absent":
        pytest.fail(worst[0][1], pytrace=False)
    if worst and worst[0][0] == "failed":
        pytest.fail(worst[0][1], pytrace=False)
    if len(said) < ranks:
        pytest.fail(f"ranks {sorted(set(range(ranks)) - set(said))} ended or hung without an error", pytrace=False)
    if worst[0][0] == "skipped":
        pytest.skip(worst[0][1])


def _flags(mine: bool) -> list[bool]:
    """Gathers flags of all ranks; gloo does not gather tensors without dimensions."""
    every = [mine] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(every, mine)
    return every


def _without_devices() -> None:
    """Makes torch-only reference code of the tests run on CPUs: they number a CPU like a GPU, scale losses, and fork random states."""
    ours, scaler = torch.nn.parallel.DistributedDataParallel, torch.amp.GradScaler
    init, scaler_init = ours.__init__, scaler.__init__
    ours.__init__ = lambda self, module, device_ids=None, output_device=None, **named: init(self, module, **named)  # type: ignore
    scaler.__init__ = lambda self, device="cpu", **named: scaler_init(self, device, **named)  # type: ignore
    fork_rng = torch.random.fork_rng
    torch.random.fork_rng = lambda devices=None, **named: fork_rng([], **named)  # type: ignore


_without_devices()
importlib.import_module("unit.common").reduce_boolean_flags = lambda flag, op=all: op(_flags(flag))
importlib.import_module("unit.common").DistributedExec._launch_procs = _launch
importlib.import_module("unit.util").bf16_required_version_check = lambda *args, **named: (
    True
)  # requires CUDA or DeepSpeed's compiled extensions


# ---- selection of tests ----

# By path below unit/: tests of parts that docs/python.md lists as unsupported, and of DeepSpeed internals.
ELSEWHERE = {
    "v1/moe": "experts over ranks",
    "checkpoint/test_moe": "experts over ranks",
    "runtime/tensor_parallel": "the inside of its tensor parallelism",
    "runtime/test_tp_plan": "the inside of its tensor parallelism",
    "checkpoint/test_autotp": "the inside of its tensor parallelism",
    "checkpoint/test_reshape": "the inside of its tensor parallelism",
    "checkpoint/test_universal": "universal checkpoints; a checkpoint here is one",
    "checkpoint/test_convert": "universal checkpoints; a checkpoint here is one",
    "checkpoint/test_mics": "MiCS",
    "v1/compile": "DeepCompile",
    "v1/nvme": "the inside of its disk library",
    "v1/ops": "kernels in Triton",
    "v1/pin_memory": "the inside of its pinned memory",
    "v1/multimodal": "inference of one model",
    "utils/test_pin_memory": "the inside of its pinned memory",
    "utils/test_byte_cast": "the inside of its disk library",
    "utils/test_nvtx": "the inside of its profiling",
    "utils/test_partition": "the inside of its pipelines",
    "utils/test_get_optim_files": "the inside of its files",
    "runtime/rollout": "generation for reinforcement learning",
    "runtime/zenflow": "ZenFlow",
    "runtime/half_precision/onebit": "1-bit optimizers of torch modules",
    "runtime/half_precision/test_fp8": "fp8 of Transformer Engine",
    "runtime/sparse_tensor": "sparse gradients",
    "checkpoint/test_sparse": "sparse gradients",
    "runtime/comm": "the inside of its collectives",
    "runtime/utils": "the inside of its partitions",
    "runtime/test_runtime_utils": "the inside of its norms",
    "runtime/test_data_efficiency": "data efficiency",
    "runtime/test_pld": "progressive layer drop",
    "runtime/test_engine_eigenvalue": "eigenvalues",
    "runtime/test_mup": "muP",
    "runtime/test_ds_config_model": "the inside of its configuration",
    "runtime/zero/test_zero_config": "the inside of its configuration",
    "runtime/zero/test_zero_linear_direct": "the inside of its linear layer",
    "v1/zero/test_zero_functorch_linear": "the inside of its linear layer",
    "v1/zero/test_overlap_comm": "the inside of its streams",
    "v1/zero/test_stage2_flatten": "the inside of its buffers",
    "v1/accelerator": "the inside of its accelerators",
    "v1/test_engine_log_level": "the inside of its logger",
}
EACH = int(os.environ.get("CLEAVE_TESTS_EACH", "3"))  # parameter sets per test function, evenly drawn


def elsewhere(test: str) -> str | None:
    below = test.partition("unit/")[2]
    return next((why for path, why in ELSEWHERE.items() if below == path or below.startswith((path + "/", path + "_", path + "."))), None)


def chosen_files(paths: list[str]) -> list[str]:
    """Returns the paths with applicable tests, and records the answer for the others."""
    for path in paths:
        if why := elsewhere(path):
            _answer({"test": path, "how": "elsewhere", "why": why})
    return [path for path in paths if not elsewhere(path)]


# Single tests of those features, in files of others.
ELSEWHERE_TESTS = re.compile(r"test_sum_gradient_allreduce_rejects_(zenflow|deepcompile)")


def pytest_collection_modifyitems(config: Any, items: list[Any]) -> None:
    items[:] = [item for item in items if not ELSEWHERE_TESTS.search(item.nodeid)]
    of_function: dict[str, list[Any]] = collections.defaultdict(list)
    for item in items:
        of_function[item.nodeid.partition("[")[0]].append(item)
    for sets in of_function.values():
        step = max(1.0, len(sets) / EACH)
        chosen = {id(sets[int(k * step)]) for k in range(min(EACH, len(sets)))}
        for item in sets:
            if id(item) not in chosen:
                items.remove(item)


# ---- results ----

# Error texts of tests that read engine internals, such as private names, or request unsupported features by name.
INSIDE = re.compile(
    r"AttributeError: ('EngineOptimizer'|'Parameter'|'Trained'|'ThroughputTimer'|'Residency'|the engine and its module|module 'cleave|"
    r"type object 'DeepSpeedEngine')"
    r"|Error: (.* has no (attribute )?'?_[a-z]|_\w+: not an attribute)|Absent: |_Kind|_Standing|deepspeed_tests|zero_linear\."
    r"|zero3_linear_wrap|ZeROOrderedDict|partitioned_param_data_shape|reduce_scatter_fn|KeyError: 'step'"
    r"|no attribute 'pipeline_parallelism'"
)
# Tests that look inside, but fail before, by their path below unit/ and their name.
INSIDE_TESTS = {
    "runtime/test_multiple_models.py::TestMultipleModels::test_bf16_optimizer[True": "_backward_epilogue",
    "runtime/zero/test_zero_autocast_mixed_dtype.py": "types of messages and of shards of single parameters",
    "runtime/zero/test_zero_hook_attribute_delegation.py": "attributes of hooks",
    "v1/zero/test_zero_hook_count_regression.py::TestHookCountRegression::test_non_reentrant_single_count_call": "internal calls",
}
# Tests that only pass if this is an error; it is supported here.
SUPPORTED = {
    "checkpoint/test_zero_optimizer.py::TestZeROElasticCheckpoint::test_elastic_checkpoint_change_dp": "checkpoints of other ranks",
    "runtime/test_no_sync_ctxt.py::TestNoSyncCtxt::test_reentry": "nested no_sync",
    "runtime/zero/test_zero_leaf_module.py::TestSetZ3LeafModule::test_no_grad_input_error": "leaf modules without gradient of inputs",
    "v1/half_precision/test_bf16.py::TestBF16OptimizerStatesOffloadValidation": "DeepSpeedCPUAdam with any optimizer state",
    "v1/zero/test_zero.py::TestIncorectAllgatherBucketSize": "any bucket size",
    "v1/zero/test_zero.py::TestZeroOffloadOptim": "torch.optim.Adam with offload",
    "v1/zero/test_zero_torch_func.py::TestZero0DirectBackwardStillRaises": "loss.backward() at stage 0",
    "v1/zero/test_zero_user_backward.py::TestUnmanagedGradientAccumulationOverlapCommValidation": "overlap_comm at any stage",
}
NO_ERROR = re.compile(r"DID NOT RAISE|Expected RuntimeError")
REFUSED = re.compile(r"NotBuilt: |(UsageError: |Input: ['\"])(the configuration|/\S+): has errors")


def _answer(line: dict[str, Any]) -> None:
    with open(os.environ["CLEAVE_TEST_ANSWERS"], "a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def _how(report: Any) -> tuple[str, str]:
    if report.passed:
        return "passed", ""
    said = str(report.longrepr[2] if report.skipped and isinstance(report.longrepr, tuple) else report.longrepr)
    if report.skipped:
        return "skipped", said[:300]
    below = report.nodeid.partition("unit/")[2]
    if INSIDE.search(said) or below.startswith(tuple(INSIDE_TESTS)):
        return "inside", said[-3000:]
    if NO_ERROR.search(said) and below.startswith(tuple(SUPPORTED)):
        return "supported", said[-3000:]
    return "refused" if REFUSED.search(said) else "failed", said[-3000:]


def pytest_runtest_logreport(report: Any) -> None:
    if report.when == "call" or not report.passed:
        how, why = _how(report)
        _answer({"test": report.nodeid, "how": how, "why": why})


def pytest_collectreport(report: Any) -> None:
    if not report.passed and str(report.nodeid).endswith(".py"):
        how, why = _how(report)
        _answer({"test": report.nodeid, "how": how, "why": why})


def table(path: str) -> str:
    """Returns the table of docs/deepspeed_tests.md."""
    counts: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    why: dict[str, str] = {}
    with open(path, encoding="utf-8") as file:
        for answer in map(json.loads, file):
            name = answer["test"].partition("::")[0].removeprefix("unit/")
            counts[name][answer["how"]] += 1
            if answer["how"] == "elsewhere":
                why[name] = answer["why"]
    lines = [
        "| file | passed | failed | expects an error | skipped by itself | looks inside | refused by name | not applicable |",
        "|---|---|---|---|---|---|---|---|",
    ]
    kinds = ("passed", "failed", "supported", "skipped", "inside", "refused")
    for name, count in sorted(counts.items()):
        if name not in why:
            lines.append(f"| `{name}` | " + " | ".join(str(count[k] or "") for k in kinds) + " | |")
    total = sum(counts.values(), collections.Counter())
    lines.append("| all | " + " | ".join(str(total[k]) for k in kinds) + f" | {len(why)} files |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table(sys.argv[2]) if sys.argv[1] == "table" else "\n".join(chosen_files(sys.argv[2:])))
