#!/usr/bin/env python3
"""Prints ds_config keys and TrainingArguments fields of the newest DeepSpeed and transformers on PyPI that this program does not support.

The script parses the sources and imports none of their code; pip prepares the metadata of a source archive, as always. New names are not an
error. Without a network the check is skipped and prints the reason.
Usage: check_new_keys.py CLEAVE [FOLDER-OF-SOURCES]
"""

import ast
import json
import pathlib
import re
import subprocess
import sys
import tarfile
import tempfile
import zipfile

ROOT = pathlib.Path(__file__).resolve().parent.parent

# Pydantic class of each section: its file in DeepSpeed, and its path in a ds_config.
CLASSES = {
    "DeepSpeedZeroConfig": ("runtime/zero/config.py", "zero_optimization"),
    "DeepSpeedZeroOffloadOptimizerConfig": ("runtime/zero/offload_config.py", "zero_optimization.offload_optimizer"),
    "DeepSpeedZeroOffloadParamConfig": ("runtime/zero/offload_config.py", "zero_optimization.offload_param"),
    "ZenFlowConfig": ("runtime/zenflow/zenflow_config.py", "zero_optimization.zenflow"),
    "DeepSpeedFP16Config": ("runtime/precision_config.py", "fp16"),
    "DeepSpeedBF16Config": ("runtime/precision_config.py", "bf16"),
    "CompileConfig": ("compile/config.py", "compile"),
    "TensorBoardConfig": ("monitor/config.py", "tensorboard"),
    "CSVConfig": ("monitor/config.py", "csv_monitor"),
    "WandbConfig": ("monitor/config.py", "wandb"),
    "CometConfig": ("monitor/config.py", "comet"),
    "CommsLoggerConfig": ("comm/config.py", "comms_logger"),
    "HybridEngineConfig": ("runtime/config.py", "hybrid_engine"),
    "TPTrainingConfig": ("runtime/tensor_parallel/config.py", "tensor_parallel"),
    "TPConfig": ("runtime/tensor_parallel/config.py", "tensor_parallel.tp"),
}
# Files with constants that name keys, and files with functions that read keys by name.
CONSTANTS = ("runtime/constants.py", "profiling/constants.py", "runtime/swap_tensor/constants.py")
GETS = ("module_inject/auto_ep_config.py",)
# Derived fields, which no ds_config sets.
OWN = {"tensor_parallel.tp": {"tp_group", "mpu"}}


def newest(package, folder):
    """Downloads the newest release with pip and returns its sources."""
    command = [sys.executable, *"-m pip download --no-deps --quiet --disable-pip-version-check --dest".split(), str(folder), package]
    run = subprocess.run(command, capture_output=True, text=True, timeout=300)
    if run.returncode:
        reason = (run.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise OSError(f"pip cannot download {package}: {reason}")
    archive = next(iter(folder.glob(f"{package}-*")))
    out = folder / package
    if archive.suffix == ".whl":
        zipfile.ZipFile(archive).extractall(out)
    else:
        with tarfile.open(archive) as packed:
            packed.extractall(out, filter="data")
    return archive.name, next(iter(out.rglob(f"{package}/__init__.py"))).parent


def fields(tree, name):
    """Returns the annotated fields of a class, with their aliases."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.ClassDef) or node.name != name:
            continue
        for item in node.body:
            if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
                named = [item.target.id]
                if isinstance(item.value, ast.Call):
                    named += [k.value.value for k in item.value.keywords if k.arg == "alias" and isinstance(k.value, ast.Constant)]
                yield named


def constants(tree):
    """Returns the top-level NAME = "text" constants that name keys: those with a NAME_DEFAULT."""
    values = {t.id: n.value for n in tree.body if isinstance(n, ast.Assign) for t in n.targets if isinstance(t, ast.Name)}
    return {v.value for k, v in values.items() if isinstance(v, ast.Constant) and isinstance(v.value, str) and f"{k}_DEFAULT" in values}


def gets(tree):
    """Returns the names that a function reads with param_dict.get("name")."""
    calls = (n for n in ast.walk(tree) if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute) and n.func.attr == "get" and n.args)
    return {n.args[0].value for n in calls if isinstance(n.args[0], ast.Constant) and isinstance(n.args[0].value, str)}


def parsed(folder, file):
    path = folder / file
    return ast.parse(path.read_text(encoding="utf-8")) if path.exists() else None


def new_keys(folder, known):
    """Returns the unsupported keys, and the sections with a class that was not found."""
    names = {path.rpartition(".")[2] for path in known}
    unknown, missing = [], []
    for name, (file, section) in CLASSES.items():
        tree = parsed(folder, file)
        found = list(fields(tree, name)) if tree else []
        if not found:
            missing.append(f"{section}: no class {name} in {file}")
        for named in found:
            if not any(f"{section}.{n}" in known for n in named) and named[0] not in OWN.get(section, ()):
                unknown.append(f"{section}.{named[0]}")
    for files, read in ((CONSTANTS, constants), (GETS, gets)):
        for file in files:
            found = read(tree) if (tree := parsed(folder, file)) else set()
            missing += [] if found else [f"no keys in {file}"]
            unknown += sorted(found - names)
    return unknown, missing


def trainer_names():
    """Returns the TrainingArguments options that `cleave train` accepts or rejects with a hint."""
    text = "".join((ROOT / f"app/{p}").read_text() for p in ("commands/trainer_names.cpp", "commands/train_options.cpp", "add_options.cpp"))
    return set(re.findall(r'^    \{"(\w+)", Kind', text, re.M)) | set(re.findall(r'"--(\w+)', text))


def main():
    cleave, *rest = sys.argv[1:] or sys.exit(__doc__)
    listed = json.loads(subprocess.run([cleave, "explain", "--keys", "--json"], capture_output=True, text=True, check=True).stdout)
    known = {key["key"] for key in listed}
    with tempfile.TemporaryDirectory() as made:
        folder = pathlib.Path(rest[0]) if rest else pathlib.Path(made)
        try:
            sources = [(p, folder / p) if rest else newest(p, folder) for p in ("deepspeed", "transformers")]
        except (OSError, subprocess.TimeoutExpired) as error:
            return print(f"skipped: new keys: {error}")
        (deepspeed, its_sources), (transformers, other_sources) = sources
        unknown, missing = new_keys(its_sources, known)
        tree = parsed(other_sources, "training_args.py")
        options = [named[0] for named in fields(tree, "TrainingArguments")] if tree else []
        options = [name for name in options if name not in trainer_names()]
    for what, of, names in (("keys", deepspeed, unknown), ("options of the Trainer", transformers, options)):
        print(f"{of}: {len(names)} {what} that this program does not know{': ' if names else ''}{', '.join(names)}")
    for line in missing:
        print(f"{deepspeed}: {line}; scripts/check_new_keys.py reads another name of it")


if __name__ == "__main__":
    main()
