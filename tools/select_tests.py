#!/usr/bin/env python3
"""Selects the tests of a change: those of the modules that it touches and of the modules above them.

    tools/select_tests.py targets [BASE]
    tools/select_tests.py tests BUILD [BASE [CTEST OPTION...]]

`targets` prints the targets to build, one per line, or "all". `tests` prints the numbers of the tests to run, for ctest -I with
the same options, or nothing where all run; it describes the selection on stderr. BASE is a commit (default, also where it is
empty: the merge base with origin/main or main). Uncommitted and new files count as changed.
Modules and their order are the table of docs/architecture.md. tests/exercises.txt says which modules a test of whole
programs exercises. A file that no rule covers selects everything. tools/test.sh --changed calls this program.
"""
import collections
import dataclasses
import functools
import json
import pathlib
import re
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import check_layout

ROOT = pathlib.Path(__file__).resolve().parent.parent
PROCESS_PROGRAMS = ("multiproc", "fault", "golden")
# The commands link every module; tests of whole programs name them where they are about the command line.
COMMANDS = "cli"
# What the library of the commands links, without those that load libtorch.
COMMAND_MODULES = {COMMANDS, "autopsy", "plan", "schedule", "telemetry", "wire"}
# What every module includes.
LOWEST = "base"
# Scripts of a few seconds run after every change.
ALWAYS = ("Layout.", "Schedule.", "Summary.", "Scripts.", "Selection.", "Mutations.")
DOCS = "Docs."
# What tests of whole programs start, besides what their sources name.
COMMAND_TARGETS = ("trireme", "trireme-torch")


@dataclasses.dataclass
class Tree:
    """What the selection knows of the sources."""
    modules: dict  # name -> modules that it includes
    programs: dict  # test program -> modules that it links
    files: dict  # "multiproc/x_test.cpp" -> words of tests/exercises.txt
    texts: dict  # the same -> source
    targets: set  # of programs that tests start


@dataclasses.dataclass
class Selection:
    everything: str = ""  # why; empty: the rest holds
    programs: set = dataclasses.field(default_factory=set)  # all of their tests
    files: set = dataclasses.field(default_factory=set)  # the tests of these sources
    scripts: set = dataclasses.field(default_factory=set)  # beginnings of CTest names
    targets: set = dataclasses.field(default_factory=set)


def linked_modules(text, tests_folder):
    """{test program: modules} from the trireme_tests() lines of tests/CMakeLists.txt."""
    programs = {}
    for names, body in re.findall(r"foreach\(module ([a-z_ ]+)\)(.*?)endforeach", text, re.DOTALL):
        if "trireme_tests(unit_${module}" in body:
            programs.update({f"unit_{name}": {name} for name in names.split()})
    for name, libraries in re.findall(r"trireme_tests\((\w+) [^)]*?LIBRARIES ([^)]*)\)", text):
        programs[name] = set(re.findall(r"trireme::(\w+)", libraries)) | (COMMAND_MODULES if "trireme_commands" in libraries else set())
    if (tests_folder / "fuzz/CMakeLists.txt").exists():
        rows = re.findall(r"^fuzz_target\(\w+ ([a-z ]+)", (tests_folder / "fuzz/CMakeLists.txt").read_text(), re.MULTILINE)
        programs["fuzz_corpora"] = {module for row in rows for module in row.split()}
    return programs


def exercises(text):
    """{file: modules} from tests/exercises.txt: lines "NAME = MODULE..." name groups, others are "FILE: MODULE|GROUP..."."""
    groups, files = {}, {}
    for line in text.splitlines():
        line = line.split("#")[0].strip()
        name, _, words = line.partition(" = " if " = " in line else ":")
        expanded = {module for word in words.split() for module in groups.get(word, {word})}
        if line:
            (groups if " = " in line else files)[name.strip()] = expanded
    return files


def read_tree(root=ROOT):
    problems = []
    modules = {name: depends for name, (_, depends) in check_layout.documented_modules(root, problems).items()}
    tests = root / "tests"
    texts = {f"{program}/{path.name}": path.read_text()
             for program in PROCESS_PROGRAMS for path in sorted((tests / program).glob("*.cpp"))}
    targets = {f"{kind}_{path.stem}" for kind, folder in (("rank", "tests/ranks"), ("example", "examples"), ("bench", "bench"))
               for path in (root / folder).glob("*.cpp")}
    targets |= {path.stem for path in (tests / "preload").glob("*.cpp")} | {"stand_in_device"}
    programs = {name: linked for name, linked in linked_modules((tests / "CMakeLists.txt").read_text(), tests).items()
                if name not in PROCESS_PROGRAMS}
    return Tree(modules, programs, exercises((tests / "exercises.txt").read_text()), texts, targets)


def modules_above(tree, changed):
    """The modules, and those that include them, directly or not. The commands link all of them."""
    above = set(changed)
    while True:
        more = {name for name, depends in tree.modules.items() if depends & above} - above
        if not more:
            return above
        above |= more


def mentioning(tree, word):
    """Sources of tests of whole programs with this name in them."""
    pattern = re.compile(rf"(?<![\w./-]){re.escape(word)}(?!\w)")
    return {file for file, text in tree.texts.items() if pattern.search(text)}


def exercising(tree, modules):
    """Sources that exercise one of the modules. A source without a line in tests/exercises.txt exercises all."""
    return {file for file in tree.texts if LOWEST in modules or tree.files.get(file, modules) & modules}


def take_path(tree, path, selection, modules):
    """The rule for one changed path. False where there is none."""
    parts = path.split("/")
    name, folder = parts[-1], parts[0]
    if folder == "trireme" and len(parts) > 2 and parts[1] in tree.modules:
        modules.add(parts[1])
        if name.endswith(".h"):
            selection.scripts.add(DOCS)
        return not name.endswith("CMakeLists.txt")
    if name == "CMakeLists.txt" or folder in ("tools", "cmake"):
        return False
    if folder == "cli":
        modules.add(COMMANDS)
        return True
    if folder in ("examples", "bench") and len(parts) == 2 or folder == "bench":
        stem = parts[1].split(".")[0]
        if name.endswith(".md"):
            selection.scripts.add(DOCS)
            return True
        found = mentioning(tree, f"{folder.removesuffix('s')}_{stem}") | mentioning(tree, f"{folder}/{name}") | mentioning(tree, name)
        selection.files |= found or mentioning(tree, f"{folder}/")
        selection.scripts |= {DOCS} if folder == "examples" else set()
        return bool(found) or folder == "bench"
    if folder == "docs" or path in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"):
        selection.scripts |= {DOCS} | ({"Recipes."} if path.startswith("docs/recipes/") else set())
        selection.files |= mentioning(tree, path)
        if path == "docs/configuration.md":  # the completion of commands is made of it, and the table of keys is held to it
            modules.update({COMMANDS, "train"})
        return True
    return folder == "tests" and len(parts) > 2 and take_test(tree, parts, selection)


def take_test(tree, parts, selection):
    """The same for a path below tests/."""
    kind, name = parts[1], parts[-1]
    if kind == "unit" and f"unit_{parts[2]}" in tree.programs:
        selection.programs.add(f"unit_{parts[2]}")
    elif kind in tree.programs:
        selection.programs.add(kind)
    elif kind == "fuzz":
        selection.programs.add("fuzz_corpora")
    elif kind in PROCESS_PROGRAMS:
        file = f"{kind}/{name}"
        selection.files |= {file} if file in tree.texts else \
            mentioning(tree, name) | mentioning(tree, f"tests/{kind}/{name}") or {each for each in tree.texts if each.startswith(kind + "/")}
    elif kind in ("ranks", "preload"):
        stem = name.split(".")[0]
        selection.files |= mentioning(tree, f"rank_{stem}" if kind == "ranks" else f"{stem}.so")
        return kind == "ranks" and bool(selection.files) or kind == "preload" and stem != "shifted_storages"
    elif kind in ("docs", "layout", "install", "recipes", "soak", "mutations"):
        selection.scripts.add({"docs": DOCS, "install": "Install.", "recipes": "Recipes.", "soak": "Soak."}.get(kind, "Layout."))
    else:
        return False
    return True


def programs_of(tree, file):
    """The targets that a test of whole programs starts."""
    return tree.targets & set(re.findall(r"\w+", tree.texts[file]))


def select(tree, changed):
    """The tests of these changed paths. Pure: it looks at nothing but the tree."""
    selection, modules = Selection(scripts=set(ALWAYS)), set()
    for path in sorted(changed):
        if not take_path(tree, path, selection, modules):
            selection.everything = f"{path} may change any test"
            return selection
    above = modules_above(tree, modules)
    selection.programs |= {name for name, linked in tree.programs.items() if linked & above}
    selection.files |= exercising(tree, modules) if modules else set()
    if modules & {COMMANDS, LOWEST}:
        selection.scripts |= {"Recipes.", "Soak."}
    selection.targets |= selection.programs | {file.split("/")[0] for file in selection.files}
    for file in selection.files:
        selection.targets |= programs_of(tree, file)
    if selection.files or selection.scripts & {DOCS, "Recipes.", "Soak.", "Install."}:
        selection.targets |= set(COMMAND_TARGETS)
    if DOCS in selection.scripts:
        selection.targets |= {target for target in tree.targets if target.startswith("example_")} | {"trireme_torch_pch"}
    if "Install." in selection.scripts:
        selection.everything = "tests of the installation read every program"
    return selection


@functools.cache
def suites_of(text):
    """The suites that a source defines, as CTest names them."""
    suites = set(re.findall(r"^TEST(?:_F)?\(\s*(\w+)", text, re.MULTILINE))
    for prefix, suite in re.findall(r"INSTANTIATE_TEST_SUITE_P\(\s*(\w+),\s*(\w+)", text):
        suites.add(f"{prefix}/{suite}")
    return suites


def is_selected(tree, selection, test):
    """Whether a test of `ctest --show-only=json-v1` is one of the selection."""
    command = pathlib.PurePath(test.get("command", [""])[0]).name
    if command in selection.programs:
        return True
    suites = {suite for file in selection.files if file.split("/")[0] == command for suite in suites_of(tree.texts[file])}
    return test["name"].split(".")[0] in suites or \
        command not in tree.programs and test["name"].startswith(tuple(selection.scripts))


def numbers(tree, selection, tests):
    """Numbers of the selected tests, and how many are left out by label."""
    chosen, left_out = [], collections.Counter()
    for number, test in enumerate(tests, 1):
        if is_selected(tree, selection, test):
            chosen.append(number)
        else:
            labels = [each["value"] for each in test.get("properties", []) if each["name"] == "LABELS"]
            left_out[labels[0][0] if labels else "not built"] += 1
    return chosen, left_out


def describe(tree, selection, left_out):
    """What runs and what does not, in lines."""
    programs = sorted(set(tree.programs) - selection.programs)
    lines = [f"selected: {' '.join(sorted(selection.programs)) or 'no whole program'}; "
             f"{len(selection.files)} of {len(tree.texts)} sources of {', '.join(PROCESS_PROGRAMS)}; "
             f"{' '.join(sorted(selection.scripts))}"]
    if programs:
        lines.append(f"left out: {len(programs)} test programs: {' '.join(programs)}")
    for program in PROCESS_PROGRAMS:
        rest = sorted(file.split("/")[1].removesuffix("_test.cpp") for file in tree.texts
                      if file.startswith(program + "/") and file not in selection.files)
        if rest:
            lines.append(f"left out: {len(rest)} sources of {program}: {' '.join(rest)}")
    if left_out:
        counted = [f"{count} programs not built" if label == "not built" else f"{count} tests of label {label}"
                   for label, count in sorted(left_out.items())]
        lines.append("left out: " + ", ".join(counted))
    return lines


def listed_tests(build, options=()):
    """The tests of a build folder in the order of their numbers; options such as -L leave some out."""
    command = ["ctest", "--test-dir", build, "--show-only=json-v1", *options]
    return json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)["tests"]


def git(*words):
    return subprocess.run(["git", "-C", ROOT, *words], capture_output=True, text=True, check=True).stdout


def changed_paths(base):
    """Paths that differ from the base, committed or not, and new files."""
    if not base:
        mains = [name for name in ("origin/main", "main") if git("branch", "--all", "--list", "--format=%(refname:short)", name).strip()]
        if not mains:
            sys.exit("select_tests: there is no branch origin/main or main to compare with; name a commit: tools/test.sh --changed BASE")
        base = git("merge-base", "HEAD", mains[0]).strip()
    try:
        differing = git("diff", "--name-only", "--no-renames", base, "--")
    except subprocess.CalledProcessError as error:
        sys.exit(f"select_tests: {base} is no commit of this repository: {error.stderr.strip()}")
    return set(differing.split("\n") + git("ls-files", "--others", "--exclude-standard").split("\n")) - {""}


def main():
    words = sys.argv[1:]
    if words[:1] == ["--help"]:
        return print(__doc__)
    if words[:1] not in (["targets"], ["tests"]) or words[0] == "tests" and len(words) < 2:
        sys.exit(__doc__)
    tree = read_tree()
    base, *options = words[2:] if words[0] == "tests" and len(words) > 2 else [words[1] if words[0] == "targets" and words[1:] else ""]
    changed = changed_paths(base)
    selection = select(tree, changed)
    if words[0] == "targets":
        return print("all" if selection.everything else "\n".join(sorted(selection.targets)))
    if selection.everything:
        return print(f"selected: everything: {selection.everything}", file=sys.stderr)
    chosen, left_out = numbers(tree, selection, listed_tests(words[1], options))
    print("\n".join([f"changed: {len(changed)} files", *describe(tree, selection, left_out)]), file=sys.stderr)
    print(",".join(map(str, chosen or [0])))


if __name__ == "__main__":
    sys.exit(main())
