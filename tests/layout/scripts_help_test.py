#!/usr/bin/env python3
"""Every script of tools/ and bench/ answers --help with what it does, and does nothing else."""
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
# What an answer may need. A build, a download or a measurement needs more.
PROGRAMS = ("bash", "env", "sed", "dirname", "python3", "cat")


def is_program(path):
    """Not what others source or import."""
    text = path.read_text()
    if path.suffix == ".sh":
        return text.startswith("#!")
    return text.startswith("#!") or "sys.argv" in text.replace("sys.argv[1:2] ==", "") or "argparse" in text


def programs():
    listed = [path for folder in ("tools", "bench") for kind in ("*.sh", "*.py") for path in sorted((ROOT / folder).rglob(kind))]
    return [path for path in listed if path.name != "answer_help.py" and is_program(path)]


class Help(unittest.TestCase):
    def test_every_script_answers(self):
        found = programs()
        self.assertGreater(len(found), 45)
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            (folder / "bin").mkdir()
            for program in PROGRAMS:
                (folder / "bin" / program).symlink_to(shutil.which(program))
            environment = {"PATH": str(folder / "bin"), "HOME": name, "PYTHONDONTWRITEBYTECODE": "1"}
            for path in found:
                with self.subTest(script=str(path.relative_to(ROOT))):
                    command = ["bash" if path.suffix == ".sh" else "python3", str(path), "--help"]
                    answer = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=60,
                                            stdin=subprocess.DEVNULL)
                    self.assertEqual((answer.returncode, answer.stderr), (0, ""))
                    # Its own name, as it is called, and a sentence.
                    self.assertIn(path.name.replace("soak.py", "soak.sh"), answer.stdout)
                    self.assertRegex(answer.stdout, r"[A-Z][a-z]+ ")
                    self.assertEqual(os.listdir(folder), ["bin"], "nothing is written")


if __name__ == "__main__":
    unittest.main()
