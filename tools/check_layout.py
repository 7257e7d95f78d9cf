#!/usr/bin/env python3
"""Checks that the code is laid out as docs/architecture.md says.

    tools/check_layout.py [ROOT]

Compares the table "Who may include whom", the trireme_module() lines of CMakeLists.txt and every #include of
trireme/, and fails on a difference, an edge that no #include uses, a cycle, torch below the torch line, another module's internal header,
<torch/torch.h> in a header, arithmetic on ranks beside the mesh, an include that is not written as "trireme/module/file.h", a file over 500 lines, or a
test whose name has more than seven words.
Prints one line per problem; exit code 0 when there is none.
"""
import pathlib
import re
import sys

MAX_LINES = 500
HEADING = "Who may include whom"
TORCH_HEADER = re.compile(r"<(torch|ATen|c10|caffe2|c10d)/")
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"][^>"]+[>"])')
# The one module that stands above the command line: it makes a library of it.
ABOVE_COMMANDS = "app"
SOURCE_FOLDERS = ("trireme", "cli", "examples", "bench", "tests")
# Where ranks lie on a mesh is MeshShape's to say (trireme/base/mesh_shape.h): nothing here divides ranks.
MESH_USERS = ("trireme/train/", "cli/")
RANK_ARITHMETIC = re.compile(r"\brank(\(\)|_)?\s*[/%]\s*\w")
# "GPUMemoryOfRank2" has four words.
MAX_TEST_WORDS = 7
TEST_NAME = re.compile(r"^\s*(?:TYPED_)?TEST(?:_F|_P)?\(\s*(\w+)\s*,\s*(?:DISABLED_)?(\w+)\s*\)", re.MULTILINE)
NAME_WORD = re.compile(r"[A-Z]+(?![a-z])[0-9]*|[A-Z]?[a-z][a-z0-9]*|[0-9]+[a-z0-9]*")
# Stand-ins that libtorch's own headers include by their original names.
FOREIGN = ("trireme/comm/internal/gloo_headers/",)


def documented_modules(root, problems):
    """{module: (may use torch, modules it may include)} from the table in docs/architecture.md."""
    text = (root / "docs/architecture.md").read_text()
    section = re.search(rf"^## {HEADING}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    if not section:
        problems.append(f'docs/architecture.md: no section "{HEADING}"')
        return {}
    modules = {}
    for row in re.findall(r"^\|(.*)\|\s*$", section.group(1), re.MULTILINE):
        cells = [cell.strip() for cell in row.split("|")]
        if len(cells) == 3 and re.fullmatch(r"[a-z_]+", cells[0]) and cells[1] in ("yes", "no"):
            modules[cells[0]] = (cells[1] == "yes", set(cells[2].split()) - {"-"})
    return modules


def built_modules(root):
    """The same from the trireme_module() lines of CMakeLists.txt."""
    text = re.sub(r"#.*", "", (root / "CMakeLists.txt").read_text())
    modules = {}
    for arguments in re.findall(r"trireme_module\(([^)]*)\)", text):
        name, *words = arguments.split()
        keyword, depends, torch = None, set(), False
        for word in words:
            if word in ("DEPENDS", "LIBRARIES"):
                keyword = word
            elif word == "TORCH":
                torch = True
            elif keyword == "DEPENDS":
                depends.add(word)
        modules[name] = (torch, depends)
    return modules


def compare_tables(documented, built, folders, problems):
    for name in sorted(documented.keys() | built.keys() | folders):
        if name not in documented:
            problems.append(f"docs/architecture.md: module {name} has no row in the table")
        if name not in built:
            problems.append(f"CMakeLists.txt: module {name} has no trireme_module() line")
        if name not in folders:
            problems.append(f"trireme/{name}: module {name} has no folder")
        if name in documented and name in built and documented[name] != built[name]:
            problems.append(f"module {name}: docs/architecture.md says {describe(documented[name])}, "
                            f"CMakeLists.txt says {describe(built[name])}")


def describe(module):
    torch, depends = module
    return f"{'torch' if torch else 'no torch'}, [{' '.join(sorted(depends))}]"


def check_graph(modules, problems):
    """Dependencies exist, never rise above the torch line, and form no cycle."""
    for name, (torch, depends) in modules.items():
        for dependency in sorted(depends):
            if dependency not in modules:
                problems.append(f"module {name} depends on {dependency}, which is no module")
            elif modules[dependency][0] and not torch:
                problems.append(f"module {name} is below the torch line and depends on {dependency}, which is above it")
    graph = {name: sorted(depends & modules.keys()) for name, (_, depends) in modules.items()}
    cycle = find_cycle(graph)
    if cycle:
        problems.append("the modules form a cycle: " + " -> ".join(cycle))


def find_cycle(graph):
    """One cycle of {node: successors} as a list that ends where it began, or None."""
    done, path = set(), []

    def visit(node):
        if node in path:
            return path[path.index(node):] + [node]
        if node in done:
            return None
        path.append(node)
        for successor in graph.get(node, ()):
            cycle = visit(successor)
            if cycle:
                return cycle
        path.pop()
        done.add(node)
        return None

    for node in graph:
        cycle = visit(node)
        if cycle:
            return cycle
    return None


def includes_of(path):
    """(line number, name with its quotes or brackets) of every #include."""
    for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
        found = INCLUDE.match(line)
        if found:
            yield number, found.group(1)


def module_of(file):
    """The module of a path relative to the root, or None."""
    found = re.match(r"trireme/([a-z_]+)/", file)
    return found.group(1) if found else None


def check_include(file, name, modules, problems, where):
    """One #include of `file` (a path relative to the root, as text)."""
    parts = file.split("/")
    module = module_of(file)
    is_header = file.endswith(".h")
    if is_header and name == "<torch/torch.h>":
        problems.append(f"{where}: <torch/torch.h> belongs into sources only; include the narrow header")
    if TORCH_HEADER.match(name.replace('"', "<", 1)) and module in modules and not modules[module][0]:
        problems.append(f"{where}: module {module} is below the torch line and includes {name}")
    target = name[1:-1]
    if name.startswith("<"):
        if target.startswith("trireme/"):
            problems.append(f'{where}: write "{target}", in quotes')
        return
    if target.startswith("cli/") and module == ABOVE_COMMANDS and not is_header:
        return
    if parts[0] == "trireme" and not re.fullmatch(r"trireme/[a-z_]+(/[a-z0-9_]+)*\.h", target):
        problems.append(f'{where}: write "{target}" as "trireme/module/file.h"')
        return
    included = module_of(target)
    if not included:
        if target.startswith("trireme/") and module:
            problems.append(f"{where}: module {module} includes the umbrella {target}; include what it needs")
        return
    if "/internal/" in target and included != module and parts[0] not in ("tests", "bench"):
        problems.append(f"{where}: {target} is internal to module {included}")
    if "/internal/" in target and is_header and "/internal/" not in file and parts[0] == "trireme":
        problems.append(f"{where}: a public header includes {target}, which is not installed")
    if module and included != module and module in modules and included not in modules[module][1]:
        problems.append(f"{where}: module {module} may not include {included} ({target})")


def check_ranks(file, text, problems):
    if not file.startswith(MESH_USERS):
        return
    for number, line in enumerate(text.splitlines(), 1):
        if RANK_ARITHMETIC.search(line.split("//")[0]):
            problems.append(f"{file}:{number}: arithmetic on a rank; ask MeshShape for its coordinate, place or group")


def check_test_names(file, text, problems):
    for found in TEST_NAME.finditer(text):
        words = NAME_WORD.findall(found.group(2))
        if len(words) > MAX_TEST_WORDS:
            line = text.count("\n", 0, found.start(1)) + 1
            problems.append(f"{file}:{line}: the name {found.group(1)}.{found.group(2)} has {len(words)} words; expected at "
                            f"most {MAX_TEST_WORDS}: drop articles and conditions, or split the test")


def check_files(root, modules, problems):
    headers, used = {}, set()
    for folder in SOURCE_FOLDERS:
        for path in sorted((root / folder).rglob("*")):
            file = path.relative_to(root).as_posix()
            if path.suffix not in (".h", ".cpp", ".cu") or file.startswith(FOREIGN):
                continue
            text = path.read_text(errors="replace")
            num_lines = text.count("\n")
            if num_lines > MAX_LINES:
                problems.append(f"{file}: {num_lines} lines; a file has at most {MAX_LINES}")
            if not text.isascii():
                problems.append(f"{file}: not plain ASCII")
            if path.suffix == ".h" and not text.startswith("#pragma once\n"):
                problems.append(f"{file}: a header begins with #pragma once")
            check_ranks(file, text, problems)
            check_test_names(file, text, problems)
            for number, name in includes_of(path):
                check_include(file, name, modules, problems, f"{file}:{number}")
                used.add((module_of(file), module_of(name[1:-1])))
                if path.suffix == ".h":
                    headers.setdefault(file, []).append(name[1:-1])
    for module, (_, depends) in modules.items():
        for dependency in sorted(depends):
            if (module, dependency) not in used:
                problems.append(f"module {module} may include {dependency} and does not: strike it from the DEPENDS "
                                "of CMakeLists.txt and from the table of docs/architecture.md")
    cycle = find_cycle(headers)
    if cycle:
        problems.append("headers include each other: " + " -> ".join(cycle))


def check(root):
    """All problems of the tree below `root`, as lines."""
    problems = []
    documented = documented_modules(root, problems)
    built = built_modules(root)
    folders = {path.name for path in (root / "trireme").iterdir() if path.is_dir()}
    compare_tables(documented, built, folders, problems)
    check_graph(built, problems)
    check_files(root, built, problems)
    return problems


def main():
    if sys.argv[1:2] == ["--help"]:
        return print(__doc__)
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).resolve().parent.parent)
    problems = check(root)
    for problem in problems:
        print(problem)
    print(f"layout: {len(problems)} problems" if problems else "layout: as docs/architecture.md says")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
