"""Runs `cleave compare`: python -m cleave.compare [OPTIONS] -- [PYTHON] SCRIPT ARGS."""

import argparse
import json
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile

from ..errors import CleaveError, UsageError
from ..programs import installed
from .judge import judge
from .records import writing
from .report import as_json, counted, text

DIFFERENT = 8  # exit code
_NAMES = {"torch": "plain torch", "deepspeed": "DeepSpeed"}


def _words(command: list[str]) -> tuple[list[str], list[str]]:
    """Returns the interpreter with its options, and the script with its arguments."""
    if not command:
        raise UsageError("compare: no script; write it after --, as in: cleave compare -n 2 -- python train.py")
    python, rest = [sys.executable], command
    if pathlib.Path(command[0]).name.startswith("python"):
        python, rest = [command[0]], command[1:]
    while rest and rest[0].startswith("-") and rest[0] != "-m":
        if rest[0] in ("-c", "-"):
            raise UsageError(f"compare: {rest[0]} is not supported; write the script to a file")
        count = 2 if rest[0] in ("-W", "-X") else 1
        python, rest = python + rest[:count], rest[count:]
    if not rest or rest == ["-m"]:
        raise UsageError("compare: no script; write it after the interpreter, as in: cleave compare -- python train.py")
    if rest[0] != "-m" and not pathlib.Path(rest[0]).is_file():
        raise UsageError(f"{rest[0]}: does not exist; give a Python script")
    return python, rest


def _parsed(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser("cleave compare")
    parser.add_argument("-n", "--ranks", type=int, default=1)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--against", default="torch")
    parser.add_argument("--keep", default="")
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--program", default="")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args(words)
    options.command = options.command[1:] if options.command[:1] == ["--"] else options.command
    if options.against not in _NAMES and not pathlib.Path(options.against).is_file():
        raise UsageError(f"--against: expected torch, deepspeed or an existing ds_config file (got {options.against})")
    return options


class _Stopped(Exception):
    """The process got SIGTERM."""


def _ended(command: list[str]) -> int:
    """Runs a command and returns its exit code. SIGTERM ends it first."""
    stopped = []
    child = subprocess.Popen(command, stdout=sys.stderr)

    def stop(number: int, _: object) -> None:
        stopped.append(number)
        child.send_signal(number)

    before = signal.signal(signal.SIGTERM, stop)
    try:
        code = child.wait()
    except KeyboardInterrupt:  # the command got the signal from the terminal
        child.wait()
        raise
    finally:
        signal.signal(signal.SIGTERM, before)
    if stopped:
        raise _Stopped
    return code


def _run(options: argparse.Namespace, folder: pathlib.Path) -> int:
    python, script = _words(options.command)
    against = options.against if options.against in _NAMES else str(pathlib.Path(options.against).resolve())
    settings = {"steps": options.steps, "seed": options.seed, "against": against}
    with writing(folder):
        (folder / "settings.json").write_text(json.dumps(settings))
    program = options.program or str(installed("bin/cleave"))
    for role, what in (("subject", "the engine"), ("reference", _NAMES.get(against, options.against))):
        number = 1 if role == "subject" else 2
        print(
            f"compare: run {number} of 2: {what}, {counted(options.ranks, 'rank')}, {counted(options.steps, 'step')}",
            file=sys.stderr,
            flush=True,
        )
        command = [program, "launch", "-n", str(options.ranks), "--", *python, "-m", "cleave.compare.script", str(folder), role, *script]
        code = _ended(command)
        if code:
            print(f"error: compare: the script failed with {what} (exit code {code}); its message is above", file=sys.stderr)
            return code
    verdict = judge(folder, options.steps)
    if verdict is None:
        raise UsageError("compare: the script called no initialize() with an optimizer; compare a script that trains")
    print(json.dumps(as_json(verdict)) if options.json else text(verdict))
    return DIFFERENT if verdict.differences or not verdict.steps else 0


def _make(folder: pathlib.Path) -> None:
    try:
        if folder.exists() and any(folder.iterdir()):
            raise UsageError(f"--keep: {folder} is not empty; give a new folder")
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--keep: {folder} cannot be made ({error.strerror}); give a new folder") from error


def main(words: list[str]) -> int:
    """Runs the comparison and returns the exit code."""
    folder = None
    try:
        options = _parsed(words)
        if options.keep:
            folder = pathlib.Path(options.keep)
            _make(folder)
        else:
            with writing(pathlib.Path(tempfile.gettempdir())):
                folder = pathlib.Path(tempfile.mkdtemp(prefix="cleave-compare-"))
        return _run(options, folder.resolve())
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except _Stopped:
        return 128 + signal.SIGTERM
    except CleaveError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    finally:
        if folder is not None and not options.keep:
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
