"""MkDocs hooks: README.md becomes the first page, the program prints the reference pages, and linked files outside of docs/, such as
examples and results, become pages. Links to a file with a reference page lead to that page.

CLEAVE names the program (default: build/release/bin/cleave).
"""

import html
import json
import os
import pathlib
import re
import subprocess
import sys
import xml.etree.ElementTree

from mkdocs.structure.files import File

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT / "tests/app"))
from honoured_rows import how_tested  # noqa: E402

LINK = re.compile(r"(\]\()([^)#:\s]+)((?:#[\w-]+)?\))")

# Pages of the Python reference: file name, title, text, names, and the files in python/cleave that links to the page may name.
PYTHON = (
    (
        "start",
        "Start a training",
        "`import cleave as deepspeed` provides these functions.",
        ("cleave.initialize", "cleave.init_distributed", "cleave.add_config_arguments"),
        ("api.py",),
    ),
    (
        "engine",
        "The engine",
        "`initialize` returns this class for a torch module.",
        ("cleave.DeepSpeedEngine\n    options: {inherited_members: true}",),
        ("engine.py", "held.py", "steps.py", "checkpoints.py"),
    ),
    (
        "native",
        "Models that the engine computes",
        '`initialize` returns this class with `"cleave": {"native": true}`. It has all methods of [the engine](engine.md).',
        ("cleave.families.FamilyEngine",),
        ("families.py",),
    ),
    (
        "pipeline",
        "Pipelines",
        "`initialize` returns a `PipelineEngine` for a `PipelineModule`. It has all methods of [the engine](engine.md).",
        (
            "cleave.PipelineModule",
            "cleave.PipelineEngine",
            "cleave.layers.LayerSpec",
            "cleave.layers.TiedLayerSpec",
            "cleave.layers.ProcessTopology",
            "cleave.layers.PipelineParallelGrid",
            "cleave.layers.PipeDataParallelTopology",
            "cleave.layers.PipeModelDataParallelTopology",
        ),
        ("layers.py", "pipeline.py"),
    ),
    ("zero", "ZeRO", "", ("cleave.zero",), ("zero.py",)),
    (
        "optimizers",
        "Optimizers and schedules",
        "Updates run in the engine. `LRRangeTest`, `OneCycle`, `WarmupLR`, `WarmupDecayLR` and `WarmupCosineLR` of "
        "`cleave.runtime.lr_schedules` are subclasses of `Schedule`.",
        (
            "cleave.optimizers.FusedAdam",
            "cleave.optimizers.DeepSpeedCPUAdam",
            "cleave.optimizers.DeepSpeedCPUAdagrad",
            "cleave.optimizers.DeepSpeedCPULion",
            "cleave.optimizers.FusedLion",
            "cleave.optimizers.EngineOptimizer",
            "cleave.schedules.Schedule",
        ),
        ("optimizers.py", "schedules.py", "ops/adam.py", "ops/adagrad.py", "ops/lion.py"),
    ),
    ("compare", "Comparison", "Run it by [`cleave compare`](../compare.md).", ("cleave.compare",), ("compare/__init__.py",)),
    ("plan", "Memory plan", "", ("cleave.plan", "cleave.planning.Plan"), ("planning.py",)),
    (
        "comm",
        "Communication",
        "[`init_distributed`](start.md) and all names of `torch.distributed` are also here.",
        ("cleave.comm",),
        ("comm.py",),
    ),
    ("checkpointing", "Activation checkpointing", "", ("cleave.checkpointing",), ("checkpointing.py",)),
    (
        "utils",
        "Utilities",
        "`cleave.utils` also has the names of `states`, `leaves`, `loading` and `logging`.",
        (
            "cleave.utils.states",
            "cleave.utils.loading",
            "cleave.utils.logging",
            "cleave.utils.groups",
            "cleave.utils.leaves",
            "cleave.utils.zero_to_fp32",
        ),
        tuple(f"utils/{name}.py" for name in ("states", "loading", "logging", "groups", "leaves", "zero_to_fp32")),
    ),
    ("errors", "Errors", "", ("cleave.errors",), ("errors.py",)),
    ("library", "The native library", "For programs that call the C interface without torch.", ("cleave.native",), ("native.py",)),
)
REFERENCE = {
    "cleave.h": "reference/cpp.md",
    **{f"python/cleave/{file}": f"reference/{name}.md" for name, *_, files in PYTHON for file in files},
}


def run(*arguments):
    program = os.environ.get("CLEAVE", str(ROOT / "build/release/bin/cleave"))
    return subprocess.run([program, *arguments], capture_output=True, text=True, check=True).stdout


def keys_page():
    """Returns a table of keys for each section of a ds_config."""
    sections = {"Top level": []}
    for row in json.loads(run("explain", "--keys", "--json")):
        section, _, key = row["key"].rpartition(".")
        cells = [f"`{key}`", row["meaning"], row["honoured_by"] or row["status"], f"`{json.dumps(row['default'])}`", row["type"]]
        cells.append(how_tested(row["key"]))
        sections.setdefault(section or "Top level", []).append(
            "| " + " | ".join(html.escape(cell, quote=False).replace("|", "\\|") for cell in cells) + " |"
        )
    lines = [
        "# ds_config keys",
        "",
        "All keys that Cleave reads, as `cleave explain --keys` prints them: `cleave train`, scripts or both act on a key, or nothing "
        "does, for the reason given. `*` stands for any name. The last column names the output that differs between two jobs with these "
        "values of the key, or the folder of its test (`tests/app/honoured_test.py`). `tests/config_schema/status_test.cpp` tests "
        "unsupported keys and keys without effect.",
    ]
    for section, rows in sections.items():
        lines += ["", f"## {section}", "", "| key | meaning | honoured by | default | type | test |", "|---|---|---|---|---|---|", *rows]
    return "\n".join(lines) + "\n"


def commands_of(*command):
    """Returns the command names in a help text."""
    return re.findall(r"^  (\w+)  +\S", run(*command, "--help"), re.MULTILINE)


def cli_page():
    """Returns the help texts of all commands."""
    lines = ["# Command line", ""]
    for name in commands_of():
        lines += [f"## cleave {name}", "", "```text", run(name, "--help").rstrip(), "```", ""]
        if name == "data":
            for part in ("split", "tokenize", "inspect", "ngrams"):
                lines += [f"### cleave data {part}", "", "```text", run(name, part, "--help").rstrip(), "```", ""]
    return "\n".join(lines)


def python_pages():
    """Returns the pages of the Python reference; mkdocstrings replaces the names with their documentation."""
    return {
        f"reference/{name}.md": "\n\n".join([f"# {title}", text, *(f"::: {of}" for of in names)]) + "\n"
        for name, title, text, names, _ in PYTHON
    }


def cpp_page(folder):
    """Returns a page that links each name of a program to its place in Doxygen's pages."""
    header = (ROOT / "cleave.h").read_text()
    places = {}
    for compound in xml.etree.ElementTree.parse(folder / "names.xml").getroot():
        name, kind, file = compound.findtext("name"), compound.get("kind"), compound.findtext("filename")
        if kind in ("class", "struct"):
            places[name] = kind, file
        elif kind == "namespace":
            for member in compound.findall("member"):
                anchor = f"{member.findtext('anchorfile')}#{member.findtext('anchor')}"
                places.setdefault(f"{name}::{member.findtext('name')}", (member.get("kind"), anchor))
    used = [
        f"cleave::{name}"
        for line in re.findall(r"^using ([^;]+);", header, re.MULTILINE)
        for name in re.findall(r"[\w:]+", line)
        if name != "using"
    ]
    own = sorted(name for name in places if re.fullmatch(r"cleave::\w+", name))
    lines = [
        "# C++",
        "",
        "`cleave.h` provides these names in the namespace `cleave`. [Namespaces](../cpp/namespaces.html), "
        "[classes](../cpp/annotated.html) and [headers](../cpp/files.html) of the library are separate pages.",
        "",
    ]
    for title, names in (("Names of a training program", used), ("Tensors, devices and errors", own)):
        lines += [f"## {title}", "", "| name | kind | defined as |", "|---|---|---|"]
        lines += [f"| [`{name.split('::')[-1]}`](../cpp/{places[name][1]}) | {places[name][0]} | `{name}` |" for name in names]
        lines += [""]
    return "\n".join(lines)


def target_of(page, link):
    """Returns the target of a link relative to the repository, or None if it is outside or a folder without a README."""
    source = ROOT if page == "index.md" else (ROOT / page if (ROOT / page).exists() else ROOT / "docs" / page).parent
    path = (source / link).resolve()
    if path.is_dir():
        path = path / "README.md"
    return path.relative_to(ROOT) if path.is_file() and path.is_relative_to(ROOT) else None


def in_site(path):
    """Returns the path of a repository file, or of its reference page, in the site."""
    if str(path) in REFERENCE:
        return pathlib.PurePath(REFERENCE[str(path)])
    return path.relative_to("docs") if path.parts[0] == "docs" else path


def on_files(files, config):
    cpp = ROOT / "build/cpp_reference"  # by scripts/cpp_reference.py
    texts = {
        "index.md": (ROOT / "README.md").read_text(),
        "keys.md": keys_page(),
        "cli.md": cli_page(),
        **python_pages(),
        "reference/cpp.md": cpp_page(cpp),
    }
    for path in (cpp / "html").rglob("*.*"):
        files.append(File.generated(config, f"cpp/{path.relative_to(cpp / 'html')}", abs_src_path=str(path)))
    for name, text in texts.items():
        files.append(File.generated(config, name, content=text))
    waiting = [
        (file.src_uri, texts.get(file.src_uri) or pathlib.Path(file.abs_src_path).read_text()) for file in files.documentation_pages()
    ]
    while waiting:
        page, text = waiting.pop()
        for _, link, _ in LINK.findall(text):
            path = target_of(page, link)
            if path is None or files.get_file_from_path(str(in_site(path))) or path.parts[0] == "docs" or str(path) == "README.md":
                continue
            files.append(File.generated(config, str(path), abs_src_path=str(ROOT / path)))
            if path.suffix == ".md":
                waiting.append((str(path), (ROOT / path).read_text()))
    return files


def on_page_markdown(markdown, page, config, files):
    del config, files

    def moved(found):
        path = target_of(page.file.src_uri, found[2])
        if path is None:
            return found[0]
        path = pathlib.PurePath("index.md") if str(path) == "README.md" else in_site(path)
        return found[1] + os.path.relpath(path, pathlib.PurePath(page.file.src_uri).parent) + found[3]

    return LINK.sub(moved, markdown)
