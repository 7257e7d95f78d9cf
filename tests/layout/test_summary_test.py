#!/usr/bin/env python3
"""Gives tools/test_summary.py the results of made-up runs and reads what it prints."""
import pathlib
import subprocess
import sys
import tempfile
import unittest

SUMMARY = pathlib.Path(__file__).resolve().parents[2] / "tools/test_summary.py"
PASSED = '<testcase name="A.Passes" status="run"><system-out>ok</system-out></testcase>'
FAILED = '<testcase name="A.Fails" status="fail"><failure message="no"/><system-out>no</system-out></testcase>'
SKIPPED = ('<testcase name="Gpu.Adds" status="notrun"><skipped message="SKIP_REGULAR_EXPRESSION_MATCHED"/>'
           '<system-out>[ RUN      ] Gpu.Adds\n/a/b.cpp:7: Skipped\nno GPU on this machine\n\n'
           '[  SKIPPED ] Gpu.Adds (0 ms)\n</system-out></testcase>')
MISSING = '<testcase name="Lost" status="notrun"><skipped message="Unable to find executable: x"/></testcase>'
DISABLED = '<testcase name="Off" status="disabled"/>'


class Summary(unittest.TestCase):
    def summary(self, *cases):
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder) / "junit.xml"
            if cases:
                file.write_text(f'<testsuite name="t">{"".join(cases)}</testsuite>')
            done = subprocess.run([sys.executable, SUMMARY, file], capture_output=True, text=True, check=False)
        return done.returncode, done.stdout

    def test_last_line_counts(self):
        code, text = self.summary(PASSED, PASSED, FAILED, SKIPPED, DISABLED)
        self.assertEqual(text.splitlines()[-1], "2 passed, 1 failed, 2 skipped")
        self.assertEqual(code, 1)
        self.assertIn("A.Fails", text)

    def test_reason_of_a_skipped_test_is_shown(self):
        code, text = self.summary(PASSED, SKIPPED)
        self.assertEqual(code, 0)
        self.assertIn("  no GPU on this machine\n    Gpu.Adds\n", text)

    def test_last_lines_of_a_failed_test_are_shown(self):
        output = "".join(f"line {number}\n" for number in range(40)) + "file.cpp:7: Failure\n  3 is not 4\n[  FAILED  ] A.Fails (0 ms)\n 1 FAILED TEST\n"
        _, text = self.summary(PASSED, FAILED.replace("<system-out>no", f"<system-out>{output}"))
        self.assertIn("    | file.cpp:7: Failure\n    |   3 is not 4\n1 passed", text)
        self.assertNotIn("line 20", text)

    def test_program_that_is_not_there_is_a_failure(self):
        code, text = self.summary(PASSED, MISSING)
        self.assertEqual(code, 1)
        self.assertEqual(text.splitlines()[-1], "1 passed, 1 failed, 0 skipped")

    def test_run_without_results_fails(self):
        self.assertEqual(self.summary()[0], 1)
        self.assertEqual(self.summary(SKIPPED)[0], 1)


if __name__ == "__main__":
    unittest.main()
