#!/usr/bin/env python3
"""gpu_bundle_test.py SOURCE BUILD TORCH

The folder that tools/gpu_bundle.sh makes runs where nothing but torch and the run-time libraries of C and C++ are: all
sections of its script on the stand-in device, what fails is reported, and so is a machine that cannot run it.
"""
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

SOURCE, BUILD, TORCH = (pathlib.Path(word) for word in sys.argv[1:4])
OF_THE_MACHINE = re.compile(r"/(ld-linux.*|lib(c|m|dl|rt|pthread|util|stdc\+\+|gcc_s))\.so")


def run(*command, **variables):
    environment = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/"), "PYTHONDONTWRITEBYTECODE": "1", **variables}
    answer = subprocess.run([str(word) for word in command], env=environment, capture_output=True, text=True, timeout=250)
    return answer.returncode, answer.stdout, answer.stderr


def check(condition, *what):
    if not condition:
        print(*what, sep="\n")
        sys.exit(1)


def records_of(text):
    return [json.loads(line) for line in text.splitlines()]


def main():
    with tempfile.TemporaryDirectory(dir=BUILD) as work:
        bundle = pathlib.Path(work) / "bundle"
        code, out, error = run(SOURCE / "tools" / "gpu_bundle.sh", bundle, TRIREME_BUILD_DIR=str(BUILD))
        check(code == 0, "no bundle was made:", out, error)

        # Of torch only the folder is there: this Python could not import it.
        code, out, error = run(sys.executable, bundle / "gpu_check", "--device", "stand_in", PYTHONPATH="/nowhere")
        check(code == 2 and "has no torch; run this script with a Python that has it" in error, "found:", code, out, error)
        torch = {"PYTHONPATH": str(TORCH.parent)}
        sections = ["device", "tests", "verify", "resume", "figures"]
        code, out, error = run(sys.executable, bundle / "gpu_check", "--device", "stand_in", "--short", "--budget", "3600", "--only",
                               *sections, "--out", f"{work}/out", **torch)  # limits for a busy machine
        records = records_of(out)
        check(code == 0 and records[-1]["what"] == "all" and records[-1]["ok"], "found:", code, out, error)
        check({each["section"] for each in records} == {*sections, "all"}, "sections are missing:", out)
        written = (pathlib.Path(work) / "out" / "gpu_check.jsonl").read_text()
        check(written == out, "the file has other results than stdout:", written, out)

        for program in (bundle / "bin").iterdir():
            _, loaded, _ = run(program, LD_TRACE_LOADED_OBJECTS="1") if program.suffix != ".so" else (0, "", "")
            for path in re.findall(r"=> (\S+)", loaded):
                check(path.startswith(f"{bundle}/") or OF_THE_MACHINE.search(path), f"{program.name} loads {path}")

        # A program that is not there, and one section that breaks: the others still report.
        (bundle / "bin" / "gpu").unlink()
        code, out, _ = run(sys.executable, bundle / "gpu_check", "--device", "stand_in", "--short", "--only", "tests", "device", "--out",
                           f"{work}/broken", **torch)
        failed = [each for each in records_of(out) if each.get("ok") is False]
        check(code == 1 and failed[0]["section"] == "tests" and "gpu" in failed[0]["error"], "found:", code, out)
        check(any(each["what"] == "doctor" and each["ok"] for each in records_of(out)), "the next section did not run:", out)
    print("the bundle runs with nothing beside torch")


main()
