#!/usr/bin/env python3
"""The commands of README and guides do their work when they are typed.

    typed_test.py BIN_FOLDER [PAGE...]

Each command of this program and of its examples runs as it stands, the commands of a page one after the other in a folder of
their own. NOT_RUN names those that do not run here, with the reason; commands_test.py reads these, too. The folder has what
a reader has: examples/, build/release/bin/, and the files that a page speaks of. To take seconds, the files in examples/ name a
small data set and end after STEPS steps. Of commands whose output depends on nothing else, the lines that the page shows are
compared. A page that shows a failure has the exit code in FAILS.
"""
import gzip
import os
import pathlib
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/docs"))
import commands_test

STEPS = 3
LIMIT_S = 120
COMMAND = re.compile(r"(?:\$ )?((?:build/release/bin/)?(?:trireme|example_\w+)(?: .*)?)$")
COMPARED = re.compile(r"trireme (schedule|simulate|plan --profile) ")
# Page, how the command begins, why it does not run.
NOT_RUN = [
    ("README.md", "trireme launch -n 4", "its program is killed by hand"),
    ("docs/autopsy.md", "trireme launch -n 2 --autopsy", "a rank is killed by hand"),
    ("docs/autopsy.md", "trireme autopsy evidence", "tells of that rank"),
    ("docs/data.md", "trireme data pack fashion_mnist", "takes all of Fashion-MNIST, which a machine may not have"),
    ("docs/offload.md", "trireme train examples/fashion_mnist.toml -n 2", "writes to /nvme"),
    ("docs/parameter-server.md", "trireme serve-", "serves at a fixed port until it is stopped"),
    ("docs/parameter-server.md", "trireme ps status", "asks a server at a fixed port"),
    ("docs/parameter-server.md", "trireme bench ps-chaos", "takes minutes"),
    ("docs/rpc.md", "trireme bench rpc-resnet50", "takes minutes"),
    ("docs/top.md", "trireme top", "shows a run that is live"),
    ("docs/top.md", "trireme train FILE.toml", "serves at a fixed port"),
    ("docs/topology.md", "trireme train job.toml", "takes UCX"),
    ("docs/training.md", "trireme train examples/quick.toml --set model.name=resnet50", "takes a minute"),
    ("docs/hybrid.md", "trireme train gpt.toml -n 8", "eight ranks"),
    ("docs/hybrid.md", "trireme train gpt.toml -n 3", "goes on from the run before it"),
    ("docs/wire.md", "build/release/bin/example_two_nodes unix:", "leaves a folder in /tmp"),
]
FAILS = {"trireme verify examples/quick.toml -n 2 --set train.precision=fp16": 5}


def commands_of(text):
    """(command, lines that the page shows for it) of each block of code; (None, ...) after `cat FILE`: its text."""
    lines = [line.rstrip() for line in commands_test.code_lines(text)]
    at = 0
    while at < len(lines):
        line, at = lines[at].strip(), at + 1
        while line.endswith("\\") and at < len(lines):
            line, at = line[:-1] + lines[at].strip(), at + 1
        shown = at
        while shown < len(lines) and lines[shown] and not re.match(r"\s*(\$ |(trireme|example_\w+) )", lines[shown]):
            shown += 1
        if COMMAND.match(line) and not commands_test.OUTPUT.match(line):
            yield COMMAND.match(line)[1], lines[at:shown]
        elif line.startswith("$ cat "):
            yield line[2:], lines[at:shown]


def reason_not_to_run(page, command):
    return next((reason for of, begin, reason in NOT_RUN if of == page and command.startswith(begin)), None)


def write_images(folder, count=256):
    """As Fashion-MNIST is: gray images of 28x28 and their classes, of which each shows a bar at a place of its own."""
    folder.mkdir()
    for split in ("train", "t10k"):
        classes = [i % 10 for i in range(count)]
        pixels = b"".join(bytes(200 if column // 2 == each else (column * row * 7) % 50 for row in range(28) for column in range(28))
                          for each in classes)
        with gzip.open(folder / f"{split}-images-idx3-ubyte.gz", "wb") as file:
            file.write(struct.pack(">IIII", 0x803, count, 28, 28) + pixels)
        with gzip.open(folder / f"{split}-labels-idx1-ubyte.gz", "wb") as file:
            file.write(struct.pack(">II", 0x801, count) + bytes(classes))


def furnish(folder, programs, page_text):
    """What a reader has before the first command of a page."""
    (folder / "examples").mkdir()
    shutil.copytree(ROOT / "examples/machines", folder / "examples/machines")
    for path in (ROOT / "examples").glob("*.toml"):
        text = re.sub(r'(?m)^name = "fashion_mnist"\n(?=\n\[model\])', f'name = "fashion_mnist"\npath = "{folder}/images"\n', path.read_text())
        text = re.sub(r"(?m)^(epochs|max_steps) = .*$", f"max_steps = {STEPS}", text)
        text = re.sub(r"(?m)^(warmup_steps|decay_steps) = .*$", r"\1 = 1", text)
        (folder / "examples" / path.name).write_text(text)
    write_images(folder / "images")
    (folder / "TEXT.txt").write_text("".join(chr(97 + i * i % 26) + " " * (i % 5 == 0) for i in range(20000)))
    rows = ((i % 7, i * i % 11, (i % 7 + i * i % 11) % 3) for i in range(500))
    (folder / "table.csv").write_text("a,b,label\n" + "".join(f"{a}.0,{b}.5,{label}\n" for a, b, label in rows))
    (folder / "build/release").mkdir(parents=True)
    (folder / "build/release/bin").symlink_to(programs)
    (folder / "my_program").symlink_to(programs / "example_own_loop")
    shutil.copy(folder / "examples/quick.toml", folder / "run.toml")
    shutil.copy(folder / "examples/table.toml", folder / "table.toml")
    shutil.copy(ROOT / "tests/golden/plan_vgg16.csv", folder / "vgg16.csv")
    if "packed/fashion" in page_text:
        run(f"trireme data pack fashion_mnist packed/fashion --set data.path={folder}/images", folder, programs)


def run(command, folder, programs):
    """(exit code, output); None where it took longer than LIMIT_S."""
    environment = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1",
                   "XDG_CACHE_HOME": str(folder / "cache")}
    process = subprocess.Popen(["bash", "-c", command], cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, text=True, start_new_session=True)
    try:
        out, _ = process.communicate(timeout=LIMIT_S)
        return process.returncode, out
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return None, process.communicate()[0]


def lines_that_differ(shown, out):
    said = [line.strip() for line in out.splitlines()]
    return [line for line in map(str.strip, shown) if line and line != "..." and line not in said]


def problem_of(command, shown, folder, programs):
    code, out = run(command, folder, programs)
    expected = next((each for begin, each in FAILS.items() if command.startswith(begin)), 0)
    if code != expected:
        return f"{command}\n  " + (f"exit code {code}" if code is not None else f"no end within {LIMIT_S} s") + f"; it said:\n{out[-2000:]}"
    differing = lines_that_differ(shown, out) if COMPARED.match(command) else []
    return f"{command}\n  prints no line {differing[0]!r} as the page does, but\n{out[-2000:]}" if differing else None


def problems_of_page(page, programs):
    text = (ROOT / page).read_text()
    problems, commands = [], list(commands_of(text))
    if all(reason_not_to_run(page, command) for command, _ in commands):
        return [], 0
    number = 0
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        furnish(folder, programs, text)
        for command, shown in commands:
            if command.startswith("cat "):
                (folder / command[4:]).write_text("\n".join(shown) + "\n")
            elif not reason_not_to_run(page, command):
                number += 1
                problems += [f"{page}: {problem}" for problem in [problem_of(command, shown, folder, programs)] if problem]
    return problems, number


def stale_rows(pages):
    """Rows of NOT_RUN and FAILS that no command begins as."""
    typed = [(page, command) for page in pages for command, _ in commands_of((ROOT / page).read_text())]
    rows = [f"{page}: {begin}" for page, begin, _ in NOT_RUN if not any(of == page and each.startswith(begin) for of, each in typed)]
    return rows + [begin for begin in FAILS if not any(each.startswith(begin) for _, each in typed)]


def main(programs, pages):
    every = ["README.md", *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").glob("*.md"))]
    problems = [f"the table of typed_test.py has a row for no command: {row}" for row in stale_rows(every)]
    number = 0
    for page in pages or every:
        of_page, run_there = problems_of_page(page, programs)
        problems, number = problems + of_page, number + run_there
    print(*problems, sep="\n\n")
    print(f"{number} commands run, {len(problems)} problems")
    return 1 if problems or (number < 40 and not pages) else 0


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(sys.argv[1]).resolve(), sys.argv[2:]))
