#!/usr/bin/env python3
"""docs/recipes/Containerfile is well formed, and each path and command that it names is in the tree. The test needs no container engine.

    containerfile_test.py TRIREME        the program that the image starts
"""
import json
import os
import pathlib
import re
import subprocess
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
FILE = ROOT / "docs/recipes/Containerfile"
TRIREME = ""
KNOWN = ("ARG", "FROM", "RUN", "WORKDIR", "COPY", "ENV", "USER", "ENTRYPOINT", "CMD")
# Fetched by apt: tini's file is that of the package.
FROM_PACKAGES = {"/usr/bin/tini": "tini"}


def instructions(text):
    """(word, its arguments) of each instruction, without comments, lines joined."""
    lines = "\n".join(line for line in text.split("\n") if not line.lstrip().startswith("#"))
    for line in re.sub(r"\\\n", " ", lines).split("\n"):
        if line.strip():
            word, _, rest = line.strip().partition(" ")
            yield word, " ".join(rest.split())


def problems_of_run(command, there):
    """`there`: paths of the tree that were copied before."""
    if subprocess.run(["sh", "-n", "-c", command], capture_output=True).returncode != 0:
        yield f"sh cannot read: {command}"
    for script in re.findall(r"(?:^|&& )((?:tools|bench)/\S+)", command):
        if not os.access(ROOT / script, os.X_OK):
            yield f"no script {script}"
        elif not there & {".", script.split("/")[0]}:
            yield f"{script} is not copied before it runs"
    for target in re.findall(r"(?:^|&& )make (\w+)", command):
        if not re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.M):
            yield f"no target of make: {target}"
        elif "." not in there:
            yield f"make {target} runs before the tree is copied"
        if f"    {command.removesuffix(' BUNDLE=1')} " not in (ROOT / "README.md").read_text():
            yield f"README does not have: {command}"
    if "apt-get install" in command and not ("apt-get update" in command and "--no-install-recommends" in command):
        yield f"an installation without update or with recommendations: {command}"


def problems(text):
    if "://" in text:
        yield "an address is named"
    stages, packages, base, prefix, there, user, path, ends = [], set(), "", "", set(), "root", "", {}
    for word, rest in instructions(text):
        if word not in KNOWN:
            yield f"no instruction {word}"
        elif word == "ARG":
            base = rest.partition("=")[2]
            # The distribution's own image, by name: no registry, no person's.
            if stages or not re.fullmatch(r"BASE=debian:[a-z]+-slim", rest):
                yield f"not the base image of the distribution: {rest}"
        elif word == "FROM":
            image, _, name = rest.partition(" AS ")
            if image != "${BASE}" or not base:
                yield f"another image: {image}"
            stages.append(name)
            there, packages, user = set(), set(), "root"
        elif word == "RUN":
            if user != "root":
                yield f"{user} runs: {rest}"
            yield from problems_of_run(rest, there)
            packages |= set(re.findall(r"[\w.-]+", (re.search(r"--no-install-recommends ([^&]*)", rest) or ["", ""])[1]))
            prefix = (re.search(r"PREFIX=(\S+)", rest) or ["", prefix])[1]
        elif word == "COPY":
            *options, source, destination = rest.split()
            if options:
                if options[0].removeprefix("--from=") not in stages[:-1] or (source, destination) != (prefix, prefix):
                    yield f"not what an earlier stage installed: {rest}"
            elif not (ROOT / source).exists():
                yield f"not in the tree: {source}"
            else:
                there.add(source)
        elif word == "USER":
            user = rest
        elif word == "ENV":
            path = rest.partition("PATH=")[2]
        else:
            ends[word] = rest
    if not re.fullmatch(r"[1-9]\d*:[1-9]\d*", user):
        yield f"the user of the image is no number other than 0, which runAsNonRoot needs: {user}"
    if f"{prefix}/bin" not in path.split(":"):
        yield f"PATH is without {prefix}/bin"
    try:
        started, command = json.loads(ends["ENTRYPOINT"]), json.loads(ends["CMD"])
    except ValueError:
        yield "ENTRYPOINT and CMD are not both in exec form, a list of words"
        return
    if FROM_PACKAGES.get(started[0]) not in packages or started[1] != "--" or started[2:] != ["trireme"]:
        yield f"not tini with trireme, installed: {started}"
    if subprocess.run([TRIREME, *command, "--help"], capture_output=True).returncode != 0:
        yield f"no command of trireme: {command}"


class Containerfile(unittest.TestCase):
    def test_it_names_what_is_there(self):
        self.assertEqual(list(problems(FILE.read_text())), [])

    def test_mistakes_are_found(self):
        for right, wrong, said in (
                ("BASE=debian:", "BASE=registry.example.org/debian:", "not the base image"),
                ("FROM ${BASE}\n", "FROM alpine\n", "another image: alpine"),
                ("COPY tools tools\n", "", "tools/setup.sh is not copied before"),
                ("COPY . .\n", "", "make install runs before"),
                ("COPY tools tools", "COPY tool tools", "not in the tree: tool"),
                ("tools/setup.sh", "tools/set-up.sh", "no script tools/set-up.sh"),
                ("make install", "make instal", "no target of make: instal"),
                ("BUNDLE=1", "BUNDEL=1", "README does not have"),
                ("--from=build", "--from=builder", "not what an earlier stage installed"),
                ("/opt/trireme /opt/trireme", "/usr/trireme /opt/trireme", "not what an earlier stage installed"),
                ("PATH=/opt/trireme/bin", "PATH=/opt/bin", "PATH is without"),
                ("USER 10001:10001", "USER trireme", "no number other than 0"),
                ("USER 10001:10001", "USER 0:0", "no number other than 0"),
                ("WORKDIR /work", "RUN true", "10001:10001 runs: true"),
                (" tini ", " ", "not tini"),
                ('CMD ["doctor"]', "CMD doctor", "exec form"),
                ('CMD ["doctor"]', 'CMD ["docter"]', "no command of trireme"),
                ("RUN apt-get update \\\n &&", "RUN &&", "sh cannot read"),
                ("WORKDIR /src", "WORKDR /src", "no instruction WORKDR"),
                ("# A layer", "# https://example.org: a layer", "an address is named")):
            text = FILE.read_text()
            self.assertIn(right, text)
            self.assertIn(said, "\n".join(problems(text.replace(right, wrong))), (right, wrong))

    def test_what_it_leaves_out_is_made_by_the_build(self):
        left_out = set((ROOT / ".dockerignore").read_text().split())
        self.assertEqual(left_out, {".deps", "build", "runs"})
        self.assertLessEqual(left_out, {each.strip("/") for each in (ROOT / ".gitignore").read_text().split("\n")})

    def test_the_pod_has_its_user(self):
        user = dict(instructions(FILE.read_text()))["USER"]
        pod = re.search(r"securityContext: \{(.*)\}", (ROOT / "docs/recipes/train.yaml").read_text())[1]
        number = user.split(":")[1]
        self.assertEqual(pod, f"runAsNonRoot: true, fsGroup: {number}")
        self.assertIn(f"user {number}", (ROOT / "docs/kubernetes.md").read_text())


if __name__ == "__main__":
    TRIREME = sys.argv.pop(1)
    unittest.main()
