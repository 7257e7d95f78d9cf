#!/usr/bin/env python3
"""cmake/TriremeBuildFacts.cmake: the commit that a program says, in a clone, with changes, in a source archive."""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
CMAKE = sys.argv.pop() if len(sys.argv) > 1 else "cmake"
IDENTITY = {"GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@b", "GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@b"}


class Commit(unittest.TestCase):
    def setUp(self):
        made = tempfile.TemporaryDirectory()
        self.addCleanup(made.cleanup)
        self.source = pathlib.Path(made.name) / "outer" / "trireme"
        (self.source / "cli").mkdir(parents=True)
        shutil.copy(ROOT / "cli/build_facts.cpp.in", self.source / "cli")
        self.output = pathlib.Path(made.name) / "build_facts.cpp"
        self.environment = {**{key: value for key, value in os.environ.items() if not key.startswith("GIT_")}, **IDENTITY}

    def git(self, *words, at=None):
        return subprocess.run(["git", "-C", at or self.source, *words], check=True, capture_output=True, text=True, env=self.environment).stdout.strip()

    def commit(self, at=None):
        self.git("add", ".", at=at)
        self.git("commit", "-q", "--allow-empty", "-m", "a", at=at)
        return self.git("rev-parse", "HEAD", at=at)[:12]

    def written(self):
        subprocess.run([CMAKE, f"-DSOURCE={self.source}", "-DVERSION=1.2.3", "-DLIBTORCH=4.5.6", f"-DOUTPUT={self.output}",
                        "-P", ROOT / "cmake/TriremeBuildFacts.cmake"], check=True, env=self.environment)
        facts = re.search(r'\.version = "(.*)", \.libtorch = "(.*)", \.commit = "(.*)"', self.output.read_text())
        self.assertEqual(facts.group(1, 2), ("1.2.3", "4.5.6"))
        return facts[3]

    def test_a_source_archive_has_none(self):
        self.assertEqual(self.written(), "unknown")

    def test_the_repository_of_another_project_around_an_archive_does_not_count(self):
        outer = self.source.parent
        self.git("init", "-q", at=outer)
        self.commit(at=outer)
        self.assertEqual(self.written(), "unknown")

    def test_a_clone_has_its_own_with_a_mark_for_changes_of_tracked_files(self):
        self.git("init", "-q")
        first = self.commit()
        self.assertEqual(self.written(), first)
        (self.source / "notes.txt").write_text("not tracked\n")
        self.assertEqual(self.written(), first)
        with open(self.source / "cli/build_facts.cpp.in", "a") as file:
            file.write("// changed\n")
        self.assertEqual(self.written(), f"{first}+changes")
        second = self.commit()
        self.assertNotEqual(second, first)
        self.assertEqual(self.written(), second)

    def test_an_unchanged_file_is_not_written_again(self):
        self.written()
        os.utime(self.output, (1, 1))
        self.written()
        self.assertEqual(self.output.stat().st_mtime, 1)


if __name__ == "__main__":
    unittest.main()
