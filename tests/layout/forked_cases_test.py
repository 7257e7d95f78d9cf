#!/usr/bin/env python3
"""forked_cases_test.py UNIT_COMM: the main function of tests/support/forked_cases_main.cpp."""
import re
import subprocess
import sys
import unittest

QUICK = "Patience"
SLOW = "GlooConnect"  # each of its cases waits for two seconds and more


def run(*arguments):
    done = subprocess.run([PROGRAM, *arguments], capture_output=True, text=True, check=False)
    return done.returncode, done.stdout


def outcomes(text):
    return sorted(re.findall(r"^case (\w+): (\S+) \(\d+ ms\)$", text, re.MULTILINE))


def cases_of(suite):
    listed = run("--gtest_list_tests", f"--gtest_filter={suite}.*")[1]
    return [f"{suite}.{case}" for case in re.findall(r"^  (\S+)", listed, re.MULTILINE)]


class ForkedCases(unittest.TestCase):
    def test_each_case_runs_once_one_after_the_other_and_at_once(self):
        cases = cases_of(QUICK)
        self.assertGreater(len(cases), 5)
        for at_once in ("1", "2", "100"):
            code, text = run(f"--cases-of={QUICK}", f"--at-once={at_once}")
            self.assertEqual(outcomes(text), sorted(("passed", case) for case in cases))
            self.assertEqual(code, 0)

    def test_a_case_that_takes_too_long_is_ended_and_fails(self):
        cases = cases_of(SLOW)
        for at_once in ("1", "2"):
            code, text = run(f"--cases-of={SLOW}", "--seconds=1", f"--at-once={at_once}")
            self.assertEqual(outcomes(text), sorted(("failed", case) for case in cases))
            self.assertEqual(text.count("has not ended within 1 s"), len(cases))
            self.assertEqual(code, 1)

    def test_its_suites_are_listed(self):
        self.assertIn(QUICK, run("--suites")[1].split())

    def test_a_suite_that_is_not_there_fails(self):
        self.assertEqual(run("--cases-of=NoSuch"), (1, "there is no suite NoSuch\n"))


if __name__ == "__main__":
    PROGRAM = sys.argv.pop()
    unittest.main()
