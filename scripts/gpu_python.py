#!/usr/bin/env python3
"""Cases of PyTorch scripts on a GPU, each compared with a plain torch loop on the same device.

The program takes the options of a GoogleTest program and prints its lines, so scripts/gpu_suite.py can run it: after a crash or a hang
the next case starts in a new process. Lines that begin with "note: " are measurements and appear in the table.

usage: gpu_python.py --gtest_list_tests | --gtest_filter=CASE[:CASE...] | --gtest_flagfile=FILE
The environment names the library (CLEAVE_LIBRARY) and the program (GPU_CHECK_CLEAVE). GPU_CHECK_DEVICE=cpu rehearses on the CPU."""

from __future__ import annotations

import contextlib
import fnmatch
import functools
import gc
import itertools
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import gpu_torch_cases

DEVICE = os.environ.get("GPU_CHECK_DEVICE", "cuda")
STEPS, MICROS, SAMPLES, LENGTH, VOCABULARY = 5, 2, 4, 32, 128
# fp32 losses and weights after 5 steps of AdamW; bf16 losses against fp32.
CLOSE, CLOSE_16 = 2e-5, 3e-2
# A large eps keeps updates small if their gradient is rounding noise.
EPS = 1e-3
ADAMW = {"type": "AdamW", "params": {"lr": 1e-2, "eps": EPS, "weight_decay": 0.1}}
HOST = {"device": "cpu", "pin_memory": True}
CASES: dict[str, Callable[[], None]] = {}


class Skip(Exception):
    """The case cannot run on this machine."""


def case(run: Callable[[], None]) -> Callable[[], None]:
    """Adds a case under the name of its function."""
    CASES[f"Python.{run.__name__}"] = run
    return run


def note(text: str) -> None:
    """Prints a measurement."""
    print(f"note: {text}", flush=True)


@functools.cache
def torch_and_engine() -> tuple[Any, Any]:
    """torch, imported first so that its CUDA libraries are the ones in use, and the engine."""
    import cleave
    import torch

    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    return torch, cleave


# ---- models, batches, loops ----


def mlp() -> Any:
    """A classifier of random vectors."""
    torch, _ = torch_and_engine()
    nn = torch.nn
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(48, 96), nn.GELU(), nn.LayerNorm(96), nn.Linear(96, 96), nn.ReLU(), nn.Linear(96, VOCABULARY))


def gpt2(width: int = 64, layers: int = 2, heads: int = 4, vocabulary: int = VOCABULARY, length: int = LENGTH) -> Any:
    """GPT-2 of transformers without dropout, with random weights."""
    torch, _ = torch_and_engine()
    try:
        import transformers
    except ImportError as error:
        raise Skip(f"transformers cannot be imported: {error}") from error
    torch.manual_seed(0)
    drops = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "bos_token_id": None, "eos_token_id": None}
    shape = {"n_embd": width, "n_layer": layers, "n_head": heads, "vocab_size": vocabulary, "n_positions": length}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**shape, **drops))


MODELS = {"mlp": mlp, "gpt2": gpt2}


def batch(kind: str, step: int, micro: int, rank: int, device: Any) -> tuple[Any, Any]:
    """Inputs and targets of one micro-batch."""
    torch, _ = torch_and_engine()
    draw = torch.Generator().manual_seed(1000 * step + 10 * micro + rank)
    if kind == "mlp":
        x, y = torch.randn(SAMPLES, 48, generator=draw), torch.randint(0, VOCABULARY, (SAMPLES,), generator=draw)
    else:
        x = y = torch.randint(0, VOCABULARY, (SAMPLES, LENGTH), generator=draw)
    return x.to(device), y.to(device)


def loss_of(kind: str, model: Any, x: Any, y: Any) -> Any:
    """The mean loss of one micro-batch in fp32."""
    torch, _ = torch_and_engine()
    if kind == "mlp":
        return torch.nn.functional.cross_entropy(model(x.to(next(model.parameters()).dtype)).float(), y)
    return model(input_ids=x, labels=y).loss


def in_torch(kind: str, ranks: int = 1) -> tuple[list[float], dict[str, Any]]:
    """Losses of each step and weights after the last one, of a plain loop in fp32 over the batches of all ranks."""
    torch, _ = torch_and_engine()
    model = MODELS[kind]().to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, eps=EPS, weight_decay=0.1)
    losses = []
    for step in range(STEPS):
        total = 0.0
        for micro in range(MICROS):
            for rank in range(ranks):
                loss = loss_of(kind, model, *batch(kind, step, micro, rank, DEVICE)) / (MICROS * ranks)
                loss.backward()
                total += loss.item()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(total)
    return losses, {name: p.detach().float().cpu() for name, p in model.named_parameters()}


def config(stage: int, **more: Any) -> dict[str, Any]:
    """A ds_config; `zero` adds to its section zero_optimization."""
    zero = {"stage": stage, "stage3_param_persistence_threshold": 100, **more.pop("zero", {})}
    batches = {"train_micro_batch_size_per_gpu": SAMPLES, "gradient_accumulation_steps": MICROS, "gradient_clipping": 0.0}
    return {**batches, "zero_optimization": zero, "optimizer": ADAMW, **more}


@contextlib.contextmanager
def engine_of(kind: str, ds_config: dict[str, Any]) -> Iterator[Any]:
    """An engine around a new model."""
    _, cleave = torch_and_engine()
    model = MODELS[kind]()
    engine = cleave.initialize(model=model, model_parameters=model.parameters(), config=ds_config)[0]
    assert engine.device.type == DEVICE, f"the engine computes on {engine.device}"
    try:
        yield engine
    finally:
        engine.destroy()


def steps(engine: Any, kind: str, first: int = 0, last: int = STEPS) -> list[float]:
    """Losses of steps first to last, averaged over ranks."""
    out = []
    for step in range(first, last):
        for micro in range(MICROS):
            engine.backward(loss_of(kind, engine, *batch(kind, step, micro, engine.global_rank, engine.device)))
            engine.step()
        out.append(engine.last_result.loss)
    return out


def weights(engine: Any) -> dict[str, Any]:
    """Whole fp32 parameters of the engine. Collective."""
    return {name: engine.parameters_of(name) for name, _ in engine.module.named_parameters()}


def compare(got: tuple[list[float], dict[str, Any]], want: tuple[list[float], dict[str, Any]], close: float = CLOSE) -> None:
    """Asserts that losses and weights differ by at most `close` (losses relative above 1, weights absolute)."""
    worst = max(abs(a - b) / max(1.0, abs(b)) for a, b in zip(got[0], want[0], strict=True))
    apart = max((got[1][name] - value).abs().max().item() for name, value in want[1].items()) if want[1] else 0.0
    note(f"largest difference from torch: losses {worst:.1e}, weights {apart:.1e} (bound {close:.0e})")
    assert worst <= close and apart <= close, f"losses {got[0]}, torch {want[0]}; weights differ by up to {apart}"


def against_torch(kind: str, ds_config: dict[str, Any], close: float = CLOSE, compare_weights: bool = True) -> None:
    """Trains with the engine and with plain torch, and compares."""
    want = in_torch(kind)
    with engine_of(kind, ds_config) as engine:
        got = steps(engine, kind), weights(engine) if compare_weights else {}
    compare(got, want if compare_weights else (want[0], {}), close)


# ---- cases ----


@case
def environment() -> None:
    """Versions, and that the engine chooses the GPU."""
    torch, cleave = torch_and_engine()
    import importlib.metadata

    installed = {d.metadata["Name"]: d.version for d in importlib.metadata.distributions()}
    found = {name: installed.get(name, "missing") for name in ("transformers", "peft", "accelerate", "pytorch-lightning", "deepspeed")}
    note(f"torch {torch.__version__}, CUDA {torch.version.cuda}; " + ", ".join(f"{k} {v}" for k, v in found.items()))
    from cleave import job

    device = job.current().facts()["device"]
    note(f"cleave {cleave.__version__} on {device}")
    assert device.startswith(DEVICE), f"the job's device is {device}"


def _add(name: str, kind: str, ds_config: dict[str, Any], close: float = CLOSE, compare_weights: bool = True) -> None:
    CASES[f"Python.{name}"] = lambda: against_torch(kind, ds_config, close, compare_weights)


_add("mlp_stage_0", "mlp", config(0))
_add("gpt2_stage_0", "gpt2", config(0))
_add("gpt2_stage_2_optimizer_offload", "gpt2", config(2, zero={"offload_optimizer": HOST}))
_add("gpt2_stage_3", "gpt2", config(3))
_add("gpt2_stage_3_parameter_offload", "gpt2", config(3, zero={"offload_optimizer": HOST, "offload_param": HOST}))
_add("gpt2_bf16_stage_2", "gpt2", config(2, bf16={"enabled": True}), CLOSE_16, False)
NATIVE = {"native": True, "sequence_length": LENGTH}
_add("gpt2_native", "gpt2", config(0, cleave=NATIVE), 1e-4)


def two_ranks(way: str, ds_config: dict[str, Any], **more: str) -> None:
    """Two ranks on one GPU, started by `cleave launch`, against a loop over the batches of both."""
    torch, _ = torch_and_engine()
    with tempfile.TemporaryDirectory() as folder:
        command = [os.environ["GPU_CHECK_CLEAVE"], "launch", "-n", "2", "--", sys.executable, __file__, "--rank", folder, json.dumps(ds_config)]
        env = {**os.environ, "CLEAVE_SHARE_GPU": "1", "CLEAVE_GPU_TRANSPORT": way if DEVICE == "cuda" else "auto", **more}
        done = subprocess.run(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        assert done.returncode == 0, f"the job ended with {done.returncode}:\n{done.stdout[-3000:]}"
        for line in done.stdout.splitlines():
            if "note: " in line:
                note(line.partition("note: ")[2])
        losses, found = torch.load(os.path.join(folder, "rank0.pt"), weights_only=True)
    compare((losses, found), in_torch("gpt2", ranks=2))


def one_rank(folder: str, ds_config: dict[str, Any]) -> None:
    """Runs one rank of two_ranks."""
    begin = time.perf_counter()
    torch, _ = torch_and_engine()
    import transformers  # noqa: F401

    imported = time.perf_counter()
    with engine_of("gpt2", ds_config) as engine:
        made = time.perf_counter()
        got = steps(engine, "gpt2"), weights(engine)
        torch.save(got, os.path.join(folder, f"rank{engine.global_rank}.pt"))
        if DEVICE == "cuda" and engine.global_rank == 0:
            free, total = torch.cuda.mem_get_info()
            print(f"note: kernels loaded {os.environ.get('CUDA_MODULE_LOADING', 'as torch says')}: imports {imported - begin:.1f} s, initialize "
                  f"{made - imported:.1f} s, steps {time.perf_counter() - made:.1f} s; GPU in use {(total - free) / 2**20:.0f} MiB", flush=True)  # fmt: skip


CASES["Python.two_ranks_stage_3_ipc"] = lambda: two_ranks("ipc", config(3))
CASES["Python.two_ranks_stage_3_ipc_lazy"] = lambda: two_ranks("ipc", config(3), CUDA_MODULE_LOADING="LAZY")
CASES["Python.two_ranks_stage_2_host"] = lambda: two_ranks("host", config(2, zero={"offload_optimizer": HOST}))


@case
def save_and_resume() -> None:
    """A new engine resumes from a checkpoint with the losses of a run without a break."""
    ds_config = config(3)
    with engine_of("gpt2", ds_config) as engine, tempfile.TemporaryDirectory() as folder:
        losses = steps(engine, "gpt2", 0, 3)
        engine.save_checkpoint(folder)
        want = losses + steps(engine, "gpt2", 3)
        with engine_of("gpt2", ds_config) as second:
            second.load_checkpoint(folder)
            got = losses + steps(second, "gpt2", 3)
    assert got == want, f"losses after the resume {got[3:]}; without a break {want[3:]}"


@case
def states_in_host_memory() -> None:
    """Optimizer states and masters leave the device and free its memory; training continues with the same bits."""
    torch, _ = torch_and_engine()
    ds_config = config(2, bf16={"enabled": True})
    with engine_of("gpt2", ds_config) as engine:
        want = steps(engine, "gpt2")
    with engine_of("gpt2", ds_config) as engine:
        got = steps(engine, "gpt2", 0, 2)
        before = torch.cuda.mem_get_info()[0] if DEVICE == "cuda" else 0
        engine.offload_states()
        live = engine.memory()["live"]["device"]
        assert not live.get("master") and not live.get("optimizer_state"), live
        note(f"free memory grew by {(torch.cuda.mem_get_info()[0] if DEVICE == 'cuda' else 0) - before} bytes")
        got += steps(engine, "gpt2", 2)
    assert got == want, f"losses {got}; without a move {want}"


def _trainer(adapter: bool, deepspeed: dict[str, Any] | None) -> list[float]:
    torch, _ = torch_and_engine()
    try:
        import peft
        import transformers
    except ImportError as error:
        raise Skip(str(error)) from error
    model = gpt2()
    if adapter:
        torch.manual_seed(1)
        model = peft.get_peft_model(model, peft.LoraConfig(r=4, lora_alpha=8, target_modules=["c_attn"], fan_in_fan_out=True))
    ids = torch.randint(0, VOCABULARY, (64, LENGTH), generator=torch.Generator().manual_seed(3))
    rows = [{"input_ids": row, "labels": row} for row in ids]
    with tempfile.TemporaryDirectory() as folder:
        args = transformers.TrainingArguments(
            output_dir=folder, max_steps=6, per_device_train_batch_size=4, learning_rate=1e-3, logging_steps=1, report_to=[], disable_tqdm=True,
            save_strategy="no", seed=3, deepspeed=deepspeed, use_cpu=DEVICE == "cpu",
        )  # fmt: skip
        made = transformers.Trainer(model=model, args=args, train_dataset=rows)
        made.train()
        if deepspeed is not None:
            import cleave

            assert isinstance(made.model_wrapped, cleave.DeepSpeedEngine), f"the Trainer wraps the model in {type(made.model_wrapped)}"
    return [line["loss"] for line in made.state.log_history if "loss" in line]


AUTO = {"train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto", "gradient_clipping": "auto"}


def trainer(adapter: bool, stage: int) -> None:
    """transformers' Trainer with the engine against the Trainer alone."""
    want = _trainer(adapter, None)
    got = _trainer(adapter, {**AUTO, "train_batch_size": "auto", "zero_optimization": {"stage": stage}})
    compare((got, {}), (want, {}), 1e-4)


CASES["Python.trainer_stage_2"] = lambda: trainer(False, 2)
CASES["Python.trainer_lora_stage_3"] = lambda: trainer(True, 3)
_add("mlp_stage_1", "mlp", config(1))
_add("mlp_stage_2", "mlp", config(2))
_add("mlp_stage_3", "mlp", config(3))
_add("gpt2_stage_1", "gpt2", config(1))
_add("gpt2_native_stage_3_parameter_offload", "gpt2", config(3, zero={"offload_optimizer": HOST, "offload_param": HOST}, cleave=NATIVE), 1e-4)


for _case in gpu_torch_cases.TorchCases(sys.modules[__name__]).all():
    CASES[f"PythonDevices.{_case.__name__}"] = _case


# ---- how fast ----


def speed(way: str) -> None:
    """GPT-2 124M in bf16, T = 1024: tokens per second of the median step, and memory of the device."""
    torch, cleave = torch_and_engine()
    small = DEVICE == "cpu"
    length, micro, count = (32, 2, 3) if small else (1024, 16, 15)
    model = gpt2(32, 2, 2, 128, length) if small else gpt2(768, 12, 12, 50257, length)
    ids = torch.randint(0, 128 if small else 50257, (micro, length), device=DEVICE)
    if way.endswith("compile"):
        for block in model.transformer.h:  # alike, so one is compiled for all
            block.compile()
    engine = None
    if way in ("eager", "eager_compile"):
        model = model.to(DEVICE)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

        def step() -> None:
            with torch.autocast(DEVICE, dtype=torch.bfloat16):
                loss = model(input_ids=ids, labels=ids).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    else:
        ds_config = config(3 if "stage_3" in way else 0, bf16={"enabled": True})
        ds_config |= {"train_micro_batch_size_per_gpu": micro, "gradient_accumulation_steps": 1}
        if "native" in way:
            ds_config["cleave"] = {"native": True, "sequence_length": length}
        own_stream = torch.cuda.stream(torch.cuda.Stream()) if "own_stream" in way and not small else contextlib.nullcontext()
        with own_stream:
            engine = cleave.initialize(model=model, model_parameters=model.parameters(), config=ds_config)[0]

        def step() -> None:
            with own_stream:
                engine.backward(engine(input_ids=ids, labels=ids).loss)
                engine.step()

    times = []
    for _ in range(count):
        begin = time.perf_counter()
        step()
        if not small:
            torch.cuda.synchronize()
        times.append(time.perf_counter() - begin)
    rate = micro * length / statistics.median(times[count // 3 :])
    memory = ""
    if not small:
        free, total = torch.cuda.mem_get_info()
        memory = f"; torch's peak {torch.cuda.max_memory_allocated() / 2**30:.2f} GiB, in use {(total - free) / 2**30:.2f} GiB"
    note(f"{way}: {rate:,.0f} tokens/s; first step {times[0]:.1f} s{memory}")
    if engine is not None:
        engine.destroy()


SPEEDS = ("eager", "engine", "native", "native_own_stream", "engine_stage_3", "eager_compile", "engine_compile", "engine_stage_3_compile")
for _way in SPEEDS:
    CASES[f"PythonSpeed.{_way}"] = functools.partial(speed, _way)


def forget() -> None:
    """Gives the memory of a case back, so that the next one measures its own."""
    torch, _ = torch_and_engine()
    gc.collect()
    if DEVICE == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    torch._dynamo.reset()


def run(name: str) -> bool:
    """Runs one case and prints GoogleTest's lines for it."""
    print(f"[ RUN      ] {name}", flush=True)
    begin = time.perf_counter()
    try:
        CASES[name]()
        result = "[       OK ]"
    except Skip as reason:
        print(reason)
        result = "[  SKIPPED ]"
    except BaseException:
        traceback.print_exc(file=sys.stdout)
        result = "[  FAILED  ]"
    print(f"{result} {name} ({1e3 * (time.perf_counter() - begin):.0f} ms)", flush=True)
    return "FAILED" not in result


def main() -> int:
    """Lists or runs cases; 1 after a failure."""
    if sys.argv[1:2] == ["--rank"]:
        one_rank(sys.argv[2], json.loads(sys.argv[3]))
        return 0
    options = sys.argv[1:]
    for argument in sys.argv[1:]:
        if argument.startswith("--gtest_flagfile="):
            options += pathlib.Path(argument.partition("=")[2]).read_text().split()
    patterns = next((o.partition("=")[2] for o in options if o.startswith("--gtest_filter=")), "*").split(":")
    names = [name for name in CASES if any(fnmatch.fnmatchcase(name, p) for p in patterns)]
    if "--gtest_list_tests" in options:
        for suite, of_suite in itertools.groupby(names, lambda name: name.partition(".")[0]):
            print(f"{suite}.", *(name.partition(".")[2] for name in of_suite), sep="\n  ")
        return 0
    for name in names:
        if not run(name) and "--gtest_fail_fast" in options:
            return 1
        if not name.startswith("Python."):
            forget()
    return 0


if __name__ == "__main__":
    sys.exit(main())
