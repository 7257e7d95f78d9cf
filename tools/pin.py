#!/usr/bin/env python3
"""Writes a list of downloads with the hashes that they are checked against.

    tools/pin.py [--python VERSION]... [--dependencies] LIST REQUIREMENT...

LIST is a name in tools/requirements/, without its folder and ending. Each REQUIREMENT is a name and an exact version.
With --dependencies the list holds what they need as well. Nothing is downloaded: pip asks the Python package index for
the names, versions and hashes of the files for each machine (x86_64, aarch64) and each --python (default: that of
WHEEL_PYTHON in tools/versions.sh).
"""
import argparse
import json
import pathlib
import re
import shlex
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
MACHINES = ("x86_64", "aarch64")
GLIBC = range(28, 16, -1)


def files_of(requirements, machine, python, dependencies):
    """(name, version, sha256) of each file that pip would install there."""
    platforms = [f"manylinux_2_{minor}_{machine}" for minor in GLIBC] + [f"manylinux2014_{machine}"]
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed", "--report", "-",
               "--only-binary=:all:", "--python-version", python, "--implementation", "cp", "--target", "none"]
    command += [f"--platform={platform}" for platform in platforms]
    command += ([] if dependencies else ["--no-deps"]) + requirements
    answer = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=600)
    if answer.returncode != 0:
        sys.exit(f"pin.py: pip found no such files for Python {python} on {machine}")
    for item in json.loads(answer.stdout)["install"]:
        name = item["metadata"]["name"].lower().replace("_", "-")
        yield name, item["metadata"]["version"], item["download_info"]["archive_info"]["hashes"]["sha256"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", action="append")
    parser.add_argument("--dependencies", action="store_true")
    parser.add_argument("list")
    parser.add_argument("requirement", nargs="+")
    options = parser.parse_args()
    pythons = options.python or [re.search(r"^WHEEL_PYTHON=(.*)$", (ROOT / "tools/versions.sh").read_text(), re.M)[1]]
    hashes = {}
    for machine in MACHINES:
        for python in pythons:
            for name, version, digest in files_of(options.requirement, machine, python, options.dependencies):
                hashes.setdefault((name, version), set()).add(digest)
    versions = {}
    for name, version in hashes:
        if versions.setdefault(name, version) != version:
            sys.exit(f"pin.py: {name} would be {versions[name]} on one machine and {version} on another; name its version")
    lines = [f"# {shlex.join(['tools/pin.py', *sys.argv[1:]])}"]
    for (name, version), digests in sorted(hashes.items()):
        lines.append(" \\\n".join([f"{name}=={version}", *(f"    --hash=sha256:{digest}" for digest in sorted(digests))]))
    (ROOT / "tools/requirements" / f"{options.list}.txt").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
