#!/usr/bin/env python3
"""Writes the C++ reference of the documentation site with Doxygen: the headers that cleave.h includes, directly or not.

usage: scripts/cpp_reference.py FOLDER      writes FOLDER/html, and FOLDER/names.xml with the place of each name

Doxygen reads copies of the headers with comments in its form. A broken reference is an error; a missing comment is not.
"""

import pathlib
import re
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
SETTINGS = """
PROJECT_NAME = Cleave
PROJECT_BRIEF = "C++ reference"
LAYOUT_FILE = {folder}/layout.xml
INPUT = {folder}/headers
RECURSIVE = YES
STRIP_FROM_PATH = {folder}/headers
STRIP_FROM_INC_PATH = {folder}/headers
OUTPUT_DIRECTORY = {folder}
GENERATE_TAGFILE = {folder}/names.xml
HTML_EXTRA_STYLESHEET = {root}/docs/cpp.css
GENERATE_LATEX = NO
HAVE_DOT = NO
CLASS_GRAPH = NO
JAVADOC_AUTOBRIEF = YES
BUILTIN_STL_SUPPORT = YES
EXTRACT_ALL = YES
HIDE_FRIEND_COMPOUNDS = YES
SORT_MEMBER_DOCS = NO
SHOW_USED_FILES = NO
VERBATIM_HEADERS = NO
SEARCHENGINE = YES
QUIET = YES
WARN_IF_UNDOCUMENTED = NO
WARN_IF_INCOMPLETE_DOC = NO
WARN_AS_ERROR = FAIL_ON_WARNINGS
MACRO_EXPANSION = YES
"""
# Tabs of each page; the first leads to the site.
LAYOUT = """<doxygenlayout version="1.0">
  <navindex>
    <tab type="user" url="../reference/cpp.html" title="All documentation"/>
    <tab type="mainpage" title="Overview"/>
    <tab type="namespaces"><tab type="namespacelist"/><tab type="namespacemembers"/></tab>
    <tab type="classes"><tab type="classlist"/><tab type="classindex"/><tab type="hierarchy"/><tab type="classmembers"/></tab>
    <tab type="files" title="Headers"><tab type="filelist"/></tab>
  </navindex>
</doxygenlayout>
"""
# Next lines that a comment does not describe.
NOT_DESCRIBED = re.compile(r"\s*(?:$|#|//|\}|namespace\b|using namespace\b|static_assert\b|friend\b|(?:public|private|protected):)")
FORWARD = re.compile(r"\s*(?:class|struct|enum class) [\w:]+;$")
TRAILING = re.compile(r"^(.*\S)(\s+)// (.*)$")
COMMENT = re.compile(r"^(\s*)//(?: (.*))?$")
SCOPE = re.compile(r"\b(?:namespace|class|struct|enum|union)\b(?![^(]*\()")


def headers():
    """Returns cleave.h and the headers that it includes, directly or not."""
    found, waiting = set(), ["cleave.h"]
    while waiting:
        name = waiting.pop()
        if name not in found and (ROOT / name).exists():
            found.add(name)
            waiting += re.findall(r'^#include "([^"]+)"', (ROOT / name).read_text(), re.MULTILINE)
    return sorted(found - {"core/choice.h"})  # Doxygen does not find the namespace of its specialization of fmt::formatter


def escaped(text):
    """Returns words that Doxygen prints as they are; code between backticks stays code."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(part if part.startswith("`") else re.sub(r'[\\@&$#<>%"]', r"\\\g<0>", part) for part in parts)


def block(lines, indent="", command=""):
    """Returns a comment of whole lines; lines with a larger indentation are code unless they continue a list item."""
    out, code, item = [f"{indent}/** {command}".rstrip()], False, False
    for line in [*lines, ""]:
        item = line.startswith("- ") or (item and line.startswith("  "))
        if (line.startswith("  ") and not item) != code:
            code = not code
            out.append("\\verbatim" if code else "\\endverbatim")
        out.append(line.replace("*/", "* /") if code else escaped(line))
    return [*out, f"{indent}*/"]


def converted(name, lines):
    """Returns the lines of a header with comments as Doxygen reads them. Comments in function bodies stay as they are.

    The first comment describes the header, and also its class of the same name if that has no comment.
    """
    out, scopes, statement, at = [], [], "", 0
    same = re.compile(rf"(?:class|struct) {pathlib.PurePath(name).stem.title().replace('_', '')}\b[^;]*$")
    first = []
    while at < len(lines):
        line = lines[at]
        described = all(scopes)  # not in a function body
        if comment := COMMENT.match(line):
            end = at
            while end < len(lines) and COMMENT.match(lines[end]):
                end += 1
            texts = [COMMENT.match(found)[2] or "" for found in lines[at:end]]
            if at == 0:
                first = block(texts)
                out += block(texts, command="\\mainpage" if name == "cleave.h" else "\\file")
            elif described and not NOT_DESCRIBED.match(lines[end] if end < len(lines) else ""):
                out += block(texts, comment[1])
            else:
                out += lines[at:end]
            at = end
            continue
        if same.match(line) and not out[-1].startswith(("*/", "template")):
            out += first
        trailing = TRAILING.match(line)
        code = trailing[1] if trailing else line
        at += 1
        if trailing and described and not NOT_DESCRIBED.match(code) and not FORWARD.match(code):
            out.append(f"{code}{trailing[2]}///< {escaped(trailing[3])}")
            column = len(code + trailing[2])
            while at < len(lines) and (more := COMMENT.match(lines[at])) and len(more[1]) == column:  # the comment continues
                out.append(f"{more[1]}///< {escaped(more[2] or '')}")
                at += 1
        else:
            out.append(line)
        for found in re.sub(r'"(?:[^"\\]|\\.)*"|\'(?:[^\'\\]|\\.)\'', "", code):
            if found == "{":
                scopes.append(bool(SCOPE.search(statement)))
                statement = ""
            elif found == "}":
                scopes.pop()
                statement = ""
            elif found == ";":
                statement = ""
            else:
                statement += found
        statement += " "
    return out


def write(folder):
    """Runs Doxygen and returns its exit status."""
    if shutil.which("doxygen") is None:
        print("error: doxygen: not found; install the Debian package doxygen (scripts/install_packages.sh docs)", file=sys.stderr)
        return 1
    shutil.rmtree(folder, ignore_errors=True)
    for name in headers():
        copy = folder / "headers" / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text("\n".join(converted(name, (ROOT / name).read_text().splitlines())) + "\n")
    (folder / "layout.xml").write_text(LAYOUT)
    settings = SETTINGS.format(root=ROOT, folder=folder)
    version = subprocess.run(["doxygen", "--version"], capture_output=True, text=True, check=True).stdout
    if tuple(map(int, re.findall(r"\d+", version)[:3])) > (1, 9, 4):
        settings += "HTML_COLORSTYLE = LIGHT\n"  # docs/cpp.css has the dark colors; older versions do not know the setting
    return subprocess.run(["doxygen", "-"], input=settings, text=True).returncode and 1


def main():
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    return write(pathlib.Path(sys.argv[1]).resolve())


if __name__ == "__main__":
    sys.exit(main())
