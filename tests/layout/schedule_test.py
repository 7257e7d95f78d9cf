#!/usr/bin/env python3
"""Holds that each row of tests/schedule.txt is well formed and names a test, or a suite, of the sources."""
import pathlib
import re
import unittest

TESTS = pathlib.Path(__file__).resolve().parents[1]
ROW = re.compile(r"([^ ]+) +([0-9]+) +([1-9]|10)( +[1-9][0-9]*)?")


def sources():
    texts = [path.read_text(encoding="utf-8") for path in TESTS.rglob("*.cpp")]
    texts += [path.read_text(encoding="utf-8") for path in TESTS.rglob("CMakeLists.txt")]
    return "\n".join(texts)


def pattern_of(name):
    """What is in a source where there is such a test."""
    suite, _, case = name.partition(".")
    prefix, _, of_parameters = suite.rpartition("/")
    if prefix:
        return rf"INSTANTIATE_TEST_SUITE_P\(\s*{prefix},\s*{of_parameters},"
    case = case or r"\w+"
    return rf"TEST(_F)?\(\s*{suite},\s*{case}\)|(add_test\(NAME |trireme_install_test\(|\(compiled ){suite}\.{case}\b"


class Schedule(unittest.TestCase):
    def test_each_row_names_a_test_once(self):
        text, names = sources(), []
        for line in (TESTS / "schedule.txt").read_text(encoding="utf-8").splitlines():
            if not line or line.startswith("#"):
                continue
            row = ROW.fullmatch(line)
            self.assertTrue(row, f"'{line}' is not NAME SECONDS TENTHS [AT_ONCE]")
            names.append(row[1])
            self.assertTrue(re.search(pattern_of(row[1]), text), f"there is no test {row[1]}: remove the row, or rename it")
        self.assertEqual(len(names), len(set(names)), "a name has two rows")
        self.assertGreater(len(names), 20)


if __name__ == "__main__":
    unittest.main()
