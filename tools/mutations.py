#!/usr/bin/env python3
"""Measures the power of the tests: puts one fault after another into the product, and records which test fails.

    tools/mutations.py [--list] [--only NAME...] [--first] [--jobs N] [--cores N] [--label LABEL] [--results FILE] [--table]

Faults are the entries of tests/mutations/*.toml. They are tried one by one in build/mutations/, in a copy of the working tree with
a build folder of its own. The changed source is compiled alone and linked in front of the library that has the unchanged one.
Then the tests of the module run, and after them those of the modules above, up to the first failure. A fault that names a suite
runs that suite first.

--only NAME    these faults; a NAME may be a regular expression
--first        the first tests alone: the suite that a fault names, or the unit tests of its module
--jobs N       faults at a time, each in a copy of its own (default: 1)
--cores N      processors for all of them (default: those of this machine)
--label LABEL  the column of the table (default: the commit)
--table        writes bench/results/mutations.md from the results in FILE (default: build/mutations/results.jsonl) and ends

Exit code 0 when every fault was caught, 1 when one was missed or could not be built.
"""
import argparse
import concurrent.futures
import dataclasses
import json
import os
import pathlib
import queue
import re
import shutil
import signal
import subprocess
import sys
import time
import tomllib

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import select_tests

ROOT = select_tests.ROOT
LIST = ROOT / "tests/mutations"
FOLDER = ROOT / "build/mutations"
PAGE = ROOT / "bench/results/mutations.md"
# In ctest --verbose: a failed test, or a failed case of a suite that forks its cases.
FAILED_TEST = re.compile(r"^\s*\d+/\d+ Test\s+#\d+: (\S+) \.*\s*(\*\*\*.*?)\s+[\d.]+ sec")
FAILED_CASE = re.compile(r"^\d+: case failed: (\S+)")
REASON = re.compile(r"^\d+: (?!\[|Note|case )(.*(?:Failure|rror|has not ended|ended by signal|differs).*)")
# After all unit tests of the modules above: programs that link many modules.
LATE = ("security", "unit_device", "fuzz_corpora", "parity")


@dataclasses.dataclass
class Mutation:
    name: str
    file: str
    old: str
    new: str
    fault: str
    feature: str = ""  # of a mode
    suite: str = ""  # regular expression over names of CTests

    @property
    def module(self):
        parts = self.file.split("/")
        return parts[1] if parts[0] == "trireme" else select_tests.COMMANDS

    def applied(self, text):
        """The text of the file with the fault."""
        lines = text.split("\n")
        found = [number for number, line in enumerate(lines) if line.strip() == self.old]
        if len(found) != 1:
            raise ValueError(f"mutation '{self.name}': {self.file} has {len(found)} lines '{self.old}'; expected one: "
                             "adapt the entry in tests/mutations/ to the present source")
        indentation = lines[found[0]][:len(lines[found[0]]) - len(lines[found[0]].lstrip())]
        lines[found[0]] = indentation + self.new if self.new else ""
        return "\n".join(lines)


def read_list(root=ROOT):
    """All mutations, each checked against the present source."""
    mutations = []
    for path in sorted((root / "tests/mutations").glob("*.toml")):
        mutations += [Mutation(**entry) for entry in tomllib.loads(path.read_text())["mutation"]]
    for mutation in mutations:
        mutation.applied((root / mutation.file).read_text())
    return mutations


def stages_of(tree, mutation, first_only):
    """What runs, in order: (test programs, sources of tests of whole programs, regular expression over CTests)."""
    stages = []
    if mutation.suite:
        owners = owners_of(tree, mutation.suite)
        stages.append(({name for name in owners if "/" not in name}, {name for name in owners if "/" in name}, mutation.suite))
    above = select_tests.modules_above(tree, {mutation.module})
    order = [mutation.module] + [name for name in tree.modules if name in above and name != mutation.module]
    programs = [f"unit_{module}" for module in order if f"unit_{module}" in tree.programs]
    programs += [name for name in LATE if tree.programs.get(name, set()) & above]
    stages += [({program}, set(), "") for program in programs]
    files = select_tests.exercising(tree, {mutation.module})
    for kind in ("golden", "multiproc", "fault"):
        some = {file for file in files if file.startswith(kind + "/")}
        stages += [(set(), some, "")] if some else []
    return stages[:1] if first_only else stages


def owners_of(tree, suite):
    """Test programs, and sources of tests of whole programs, with suites that the expression finds."""
    owners = {file for file, text in tree.texts.items() if any(re.search(suite, name) for name in select_tests.suites_of(text))}
    for path in (ROOT / "tests/unit").glob("*/*.cpp"):
        if any(re.search(suite, name) for name in select_tests.suites_of(path.read_text())):
            owners.add(f"unit_{path.parent.name}")
    if not owners:
        raise ValueError(f"no test source has a suite '{suite}'")
    return owners


class Copy:
    """A copy of the working tree with a build folder, in which one fault at a time is tried."""

    def __init__(self, number, cores):
        self.folder, self.cores = FOLDER / f"tree-{number}", cores
        self.build = self.folder / "build/release"
        self.synchronise()
        if not (self.build / "build.ninja").exists():
            self.run(["cmake", "--preset", "release"])

    def run(self, command):
        done = subprocess.run(command, cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)}:\n{done.stdout[-4000:]}")

    def synchronise(self):
        """Files that are alike keep their times, so that little is built."""
        self.folder.mkdir(parents=True, exist_ok=True)
        listed = select_tests.git("ls-files", "--cached", "--others", "--exclude-standard").split("\n")
        files = {file for file in listed if file and (ROOT / file).is_file()}
        known = self.folder / "build/files.json"
        for file in set(json.loads(known.read_text()) if known.exists() else []) - files:
            (self.folder / file).unlink(missing_ok=True)
        for file in files:
            source, target = ROOT / file, self.folder / file
            if not target.exists() or target.read_bytes() != source.read_bytes():
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source, target)
                shutil.copymode(source, target)
        known.parent.mkdir(exist_ok=True)
        known.write_text(json.dumps(sorted(files)))
        if not (self.folder / ".deps").exists():
            (self.folder / ".deps").symlink_to(ROOT / ".deps")

    def make(self, targets):
        self.run(["ninja", "-C", str(self.build), "-j", str(self.cores), *sorted(targets)])

    def tests(self, tree, programs, files, pattern):
        """Numbers of those CTests."""
        some = select_tests.Selection(programs=programs, files=files, scripts={"no script"})
        return [number for number, test in enumerate(select_tests.listed_tests(self.build), 1)
                if select_tests.is_selected(tree, some, test) and re.search(pattern, test["name"])]

    def first_failure(self, numbers):
        """(name, reason) of the first test that fails; None when all pass. Ends the others."""
        command = ["ctest", "--test-dir", self.build, "--verbose", "--stop-on-failure", "--parallel", str(self.cores),
                   "-I", "0,0,0," + ",".join(map(str, numbers))]
        running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
                                   start_new_session=True)
        failure, reason = None, ""
        for line in running.stdout:
            found = FAILED_CASE.match(line) or FAILED_TEST.match(line)
            if found:
                failure = found.group(1), reason or (found.group(2) if found.re is FAILED_TEST else "")
                break
            said = REASON.match(line)
            reason = said.group(1)[:200] if said else reason
        if failure:
            os.killpg(running.pid, signal.SIGKILL)
        running.wait()
        return failure or (("ctest", "exit code " + str(running.returncode)) if running.returncode else None)

    def targets(self, tree, programs, files):
        targets = programs | {file.split("/")[0] for file in files}
        for file in files:
            targets |= select_tests.programs_of(tree, file)
        return targets | (set(select_tests.COMMAND_TARGETS) if files else set())

    def compile(self, mutation):
        """The object of the changed source, and the library that has the unchanged one."""
        unities = [path for path in self.build.glob("**/Unity/*.cxx") if f"/{mutation.file}\"" in path.read_text()]
        unit = str(unities[0] if unities else self.folder / mutation.file)
        command = next(entry["command"] for entry in json.loads((self.build / "compile_commands.json").read_text())
                       if entry["file"] == unit and "trireme_" in entry["command"])
        before = re.search(r"-o (\S+) -c", command).group(1)
        folder = self.build / "mutated"
        folder.mkdir(exist_ok=True)
        source = folder / f"{mutation.name}.cpp"
        source.write_text(mutation.applied((self.folder / mutation.file).read_text()))
        words = command.replace(f"-o {before} -c {unit}", f"-w -o {source}.o -c {source}")
        self.run(["bash", "-c", f"cd {self.build} && {words}"])
        return f"{source}.o", f"lib/lib{re.search(r'/?(trireme_[a-z_]+)[.]dir/', before).group(1)}.a"

    def link(self, programs, changed, library):
        """Links those programs that have the library anew. Definitions of the first object count."""
        for program in programs:
            path = self.build / "bin" / program
            kept = self.build / "unchanged" / program
            if kept.exists() or not path.exists():
                continue
            listed = subprocess.run(["ninja", "-C", self.build, "-t", "commands", f"bin/{program}"], capture_output=True, text=True, check=True)
            command = listed.stdout.rstrip("\n").split("\n")[-1]
            if f" {library} " in command:
                kept.parent.mkdir(exist_ok=True)
                path.rename(kept)
                words = command.replace(f"-o bin/{program} ", f"{changed} -Wl,-z,muldefs -o bin/{program} ")
                self.run(["bash", "-c", f"cd {self.build} && {words}"])

    def restore(self):
        """The programs without a fault."""
        for kept in (self.build / "unchanged").glob("*"):
            kept.replace(self.build / "bin" / kept.name)

    def judge(self, tree, mutation, first_only):
        """The result of one fault, as a dictionary."""
        result = {"name": mutation.name, "state": "missed", "by": "", "reason": "", "build_s": 0.0, "tests_s": 0.0, "tests": 0}
        self.restore()
        try:
            began = time.monotonic()
            changed, library = self.compile(mutation)
            for programs, files, pattern in stages_of(tree, mutation, first_only):
                targets = self.targets(tree, programs, files)
                self.make(targets)
                self.link(targets, changed, library)
                numbers = self.tests(tree, programs, files, pattern)
                built = time.monotonic()
                failure = self.first_failure(numbers) if numbers else None
                result["build_s"] += built - began
                result["tests_s"] += time.monotonic() - built
                result["tests"] += len(numbers)
                began = time.monotonic()
                if failure:
                    result.update(state="caught", by=failure[0], reason=failure[1])
                    break
        except RuntimeError as error:
            result.update(state="not built", reason=str(error))
        finally:
            self.restore()
        return result


def cell_of(found):
    """A result in words."""
    by = f"`{found['by']}`" if found["by"] else f"**{found['state']}**"
    return by + (f" ({found['build_s']:.0f} + {found['tests_s']:.0f} s)" if found["build_s"] else "")


def row_of(mutation, results, labels):
    cells = [f"`{mutation.name}`", mutation.module, mutation.feature, mutation.fault]
    found = [results.get((mutation.name, label)) for label in labels]
    cells += [cell_of(each) if each else "" for each in found] if any(found) else ["not run" for _ in labels]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def write_table(mutations, path):
    """The page of the results: one row per fault, one column per label."""
    results, labels = {}, []
    for line in path.read_text().splitlines():
        record = json.loads(line)
        results[record["name"], record["label"]] = record
        labels += [record["label"]] if record["label"] not in labels else []
    begin, end = "<!-- table: tools/mutations.py --table -->\n", "<!-- end of table -->\n"
    head = ["fault", "module", "feature", "what it simulates", *(f"caught by ({label})" for label in labels)]
    rows = ["| " + " | ".join(head) + " |", "| " + " | ".join("---" for _ in head) + " |"]
    rows += [row_of(mutation, results, labels) for mutation in mutations]
    page = PAGE.read_text()
    before, _, rest = page.partition(begin)
    PAGE.write_text(before + begin + "\n" + "\n".join(rows) + "\n\n" + end + rest.partition(end)[2])


def arguments():
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--only", nargs="+", default=[])
    parser.add_argument("--first", action="store_true")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--cores", type=int, default=os.cpu_count())
    parser.add_argument("--label", default="")
    parser.add_argument("--results", type=pathlib.Path, default=FOLDER / "results.jsonl")
    parser.add_argument("--table", action="store_true")
    return parser.parse_args()


def chosen(mutations, names):
    some = [mutation for mutation in mutations if not names or any(re.fullmatch(name, mutation.name) for name in names)]
    if not some:
        sys.exit(f"mutations: no fault is named {' or '.join(names)}; --list prints the names")
    return some


def run_all(mutations, options):
    """Prints and records each result. True when all were caught."""
    tree = select_tests.read_tree()
    label = options.label or select_tests.git("rev-parse", "--short", "HEAD").strip()
    copies = queue.Queue()
    for number in range(options.jobs):
        copies.put(Copy(number, max(1, options.cores // options.jobs)))

    def judge(mutation):
        copy = copies.get()
        try:
            return copy.judge(tree, mutation, options.first)
        finally:
            copies.put(copy)

    good = True
    options.results.parent.mkdir(parents=True, exist_ok=True)
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        for done in concurrent.futures.as_completed([pool.submit(judge, mutation) for mutation in mutations]):
            result = done.result()
            good = good and result["state"] == "caught"
            with options.results.open("a") as file:
                file.write(json.dumps({**result, "label": label}) + "\n")
            print(f"{result['state']}: {result['name']} {result['by']} (build {result['build_s']:.0f} s, {result['tests']} tests "
                  f"{result['tests_s']:.0f} s) {result['reason']}", flush=True)
    return good


def main():
    if sys.argv[1:2] == ["--help"]:
        return print(__doc__)
    options = arguments()
    try:
        mutations = read_list()
    except ValueError as error:
        sys.exit(f"mutations: {error}")
    if options.table:
        return write_table(mutations, options.results)
    mutations = chosen(mutations, options.only)
    if options.list:
        return print("\n".join(f"{mutation.name}: {mutation.file}: {mutation.fault}" for mutation in mutations))
    return 0 if run_all(mutations, options) else 1


if __name__ == "__main__":
    sys.exit(main())
