#!/usr/bin/env python3
"""VERSION, the changelog, the notes of the tag and the pages that name a version agree (docs/releases.md)."""
import pathlib
import re
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
VERSION = (ROOT / "VERSION").read_text().strip()


def sections(text):
    """{heading: its text} of the second level."""
    parts = re.split(r"(?m)^## (.*)$", text)
    return dict(zip(parts[1::2], parts[2::2]))


class Release(unittest.TestCase):
    def setUp(self):
        self.changes = sections((ROOT / "CHANGELOG.md").read_text())

    def test_the_newest_release_of_the_changelog_is_the_version(self):
        unreleased, newest = list(self.changes)[:2]
        self.assertEqual(unreleased, "[Unreleased]")
        self.assertRegex(newest, rf"^\[{re.escape(VERSION)}\] - \d{{4}}-\d\d-\d\d$")

    def test_the_next_release_has_its_headings(self):
        headings = re.findall(r"(?m)^### (.*)$", self.changes["[Unreleased]"])
        self.assertEqual([each for each in headings if each != "Removed"], ["Added", "Changed", "Fixed"])

    def test_the_tag_has_notes_of_lines_that_git_shows_whole(self):
        lines = (ROOT / f"docs/releases/{VERSION}.txt").read_text().splitlines()
        self.assertEqual(lines[0], f"Trireme {VERSION}")
        self.assertEqual([line for line in lines if len(line) > 80], [])

    def test_pages_name_the_version(self):
        for page, pattern in (("README.md", r"Version ([\d.]+\d)"), ("docs/cli.md", r"trireme-([\d.]+)/"), ("docs/cli.md", r"trireme ([\d.]+), libtorch")):
            found = re.findall(pattern, (ROOT / page).read_text())
            self.assertEqual(set(found), {VERSION}, f"{page}: {pattern}")


if __name__ == "__main__":
    unittest.main()
