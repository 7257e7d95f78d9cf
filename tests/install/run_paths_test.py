#!/usr/bin/env python3
"""run_paths_test.py build|plain|bundle FOLDER TORCH

No program looks for libraries in the current directory, nor in a folder of somebody else. The programs of the build
folder look into it and into the libtorch of the build, installed ones beside themselves and into that libtorch, those
of a bundle beside themselves only. TORCH is the folder of the torch package.
"""
import os
import pathlib
import subprocess
import sys
import tempfile

from elf import dynamic, folder, programs_of, run_path

LEAST_PROGRAMS = 2  # trireme and trireme-torch


def faults_of(path, allowed):
    """What is wrong with the run path of a program, in words. `allowed`: folders it may name, with all below them."""
    entries = run_path(path) or []
    faults = ["has empty entries, which mean the current directory"] if "" in entries else []
    for entry in filter(None, entries):
        if entry == "$ORIGIN" or entry.startswith("$ORIGIN/"):
            continue
        elif not entry.startswith("/"):
            faults.append(f"has the relative entry '{entry}'")
        elif not any(pathlib.Path(entry).resolve().is_relative_to(each) for each in allowed):
            faults.append(f"has the foreign entry '{entry}'")
    return [f"{path}: {fault}" for fault in faults]


def start_beside_planted(program):
    """What is wrong with a start in a folder with files of the names of all libraries that the program needs."""
    with tempfile.TemporaryDirectory() as name:
        for library in dynamic(program, "NEEDED"):
            (pathlib.Path(name) / library).write_text("no library\n")
        environment = {key: value for key, value in os.environ.items() if not key.startswith("LD_")}
        answer = subprocess.run([program, "--version"], cwd=name, env=environment, capture_output=True, text=True, timeout=100)
    return [] if answer.returncode == 0 else [f"{program}: loads libraries of the current directory: {answer.stderr.strip()}"]


def main():
    kind, root, torch = sys.argv[1], folder(sys.argv[2]), folder(sys.argv[3])
    folders = {"build": ("bin", "lib"), "plain": (), "bundle": ()}[kind]
    allowed = {"build": [root, torch / "lib"], "plain": [torch / "lib"], "bundle": []}[kind]
    found = programs_of(root, *folders)
    faults = [fault for path in found for fault in faults_of(path, allowed)]
    started = [path for path in found if path.name in ("trireme", "trireme-torch")]
    if len(started) < LEAST_PROGRAMS:
        faults.append(f"{root}: trireme and trireme-torch are not there; build or install them first")
    for path in started:
        faults += start_beside_planted(path)
    print("\n".join(faults) or f"{len(found)} programs and libraries of {root} look for libraries in own folders only")
    return 1 if faults else 0


sys.exit(main())
