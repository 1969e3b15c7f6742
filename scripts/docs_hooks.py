"""MkDocs hooks: README.md becomes the first page, the program prints the reference pages, and linked files outside of docs/, such as
examples
and results, become pages.

CLEAVE names the program (default: build/release/bin/cleave).
"""
import html
import json
import os
import pathlib
import re
import subprocess

from mkdocs.structure.files import File

ROOT = pathlib.Path(__file__).resolve().parent.parent
LINK = re.compile(r"(\]\()([^)#:\s]+)((?:#[\w-]+)?\))")


def run(*arguments):
    program = os.environ.get("CLEAVE", str(ROOT / "build/release/bin/cleave"))
    return subprocess.run([program, *arguments], capture_output=True, text=True, check=True).stdout


def keys_page():
    """Returns a table of keys for each section of a ds_config."""
    sections = {"Top level": []}
    for row in json.loads(run("explain", "--keys", "--json")):
        section, _, key = row["key"].rpartition(".")
        cells = [f"`{key}`", row["type"], f"`{json.dumps(row['default'])}`", row["status"], row["honoured_by"], row["meaning"]]
        sections.setdefault(section or "Top level", []).append(
            "| " + " | ".join(html.escape(cell, quote=False).replace("|", "\\|") for cell in cells) + " |")
    lines = ["# ds_config keys", "", "All keys that Cleave reads, as `cleave explain --keys` prints them. `*` stands for any name."]
    for section, rows in sections.items():
        lines += ["", f"## {section}", "", "| key | type | default | status | honoured by | meaning |", "|---|---|---|---|---|---|", *rows]
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


def target_of(page, link):
    """Returns the target of a link relative to the repository, or None if it is outside or a folder without a README."""
    source = ROOT if page == "index.md" else (ROOT / page if (ROOT / page).exists() else ROOT / "docs" / page).parent
    path = (source / link).resolve()
    if path.is_dir():
        path = path / "README.md"
    return path.relative_to(ROOT) if path.is_file() and path.is_relative_to(ROOT) else None


def in_site(path):
    """Returns the path of a repository file in the site."""
    return path.relative_to("docs") if path.parts[0] == "docs" else path


def on_files(files, config):
    texts = {"index.md": (ROOT / "README.md").read_text(), "keys.md": keys_page(), "cli.md": cli_page()}
    for name, text in texts.items():
        files.append(File.generated(config, name, content=text))
    waiting = [(file.src_uri, texts.get(file.src_uri) or pathlib.Path(file.abs_src_path).read_text()) for file in files.documentation_pages()]
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
