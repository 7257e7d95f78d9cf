#!/usr/bin/env python3
"""The commands of README and guides can be typed as they stand: commands, options, keys, values and files are there.

What the program takes stands in tests/golden/cli_help*.txt and in docs/configuration.md, which other tests compare with it.
"""
import pathlib
import re
import shlex
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests/golden"
OF_A_FILE = ("train", "verify", "memory", "profile", "find-batch")
# A line that shows what is printed, or a usage, begins with the same word.
OUTPUT = re.compile(r"trireme [a-z-]+: |.*\[--")


def code_lines(text):
    """Lines of fenced and of indented code, and "" between blocks; not of a block after a line `<!-- not to be typed: REASON -->`."""
    fenced = indented = left_out = False
    after_a_break = True
    for line in text.split("\n"):
        if re.match(r" {0,3}(```|~~~)", line):
            fenced, after_a_break = not fenced, True
            yield ""
            continue
        was_indented = indented
        indented = line.startswith("    ") and (after_a_break or indented)
        if was_indented and not indented:
            yield ""
        if (fenced or indented) and not left_out:
            yield line if fenced else line[4:]
        mark = re.fullmatch(r"<!-- not to be typed: .+ -->", line) is not None
        if mark or (line.strip() and not fenced and not indented):
            left_out = mark
        after_a_break = not line.strip() or line.startswith("#") or mark


def commands_of(text):
    """Each command of this program, with the lines that continue it, as words."""
    lines = iter(code_lines(text))
    for line in lines:
        while line.rstrip().endswith("\\"):
            line = line.rstrip()[:-1] + next(lines, "")
        found = re.match(r"\s*(?:\$ )?(?:build/release/bin/)?(trireme .*)", line)
        if found and not OUTPUT.match(found.group(1)):
            words = shlex.split(found.group(1), comments=True)
            ends = [i for i, word in enumerate(words) if word in ("&", "|", ">", "&&", ";") or word.endswith(";")]
            yield [word.rstrip(";") for word in words[1:ends[0] + words[ends[0]].endswith(";") if ends else len(words)]]


def known_options(command):
    """Of its help; None where no test holds one."""
    file = GOLDEN / f"cli_help_{command.replace('-', '_')}.txt"
    return {"-h", "--help"} | set(re.findall(r"(?<![\w-])(--?[a-z][\w-]*)", file.read_text())) if file.exists() else None


def keys():
    """Of docs/configuration.md: by name the type, and what a text may be."""
    rows = re.findall(r"^\| `([a-z_]+\.[a-z0-9_]+)` \| ([^|]*) \| [^|]* \| ([^|]*) \|", (ROOT / "docs/configuration.md").read_text(), re.M)
    return {name: (kind, {each.strip() for each in allowed.split(",")} if re.fullmatch(r"[\w-]+(, [\w-]+)+ ?", allowed) else None)
            for name, kind, allowed in rows}


def problem_of_setting(setting, known):
    name, _, value = setting.partition("=")
    if name not in known:
        return f"no key {name}"
    kind, allowed = known[name]
    if kind in ("number", "whole number") and not re.fullmatch(r"[-+]?[\d.]+(e[-+]?\d+)?|[A-Z]", value):
        return f"{setting}: expected a {kind}"
    if kind == "true or false" and value not in ("true", "false"):
        return f"{setting}: expected true or false"
    return f"{setting}: expected one of {sorted(allowed)}" if kind == "text" and allowed and value not in allowed else ""


def problems_of(words, known):
    if not words:
        return []
    command, problems = words[0], []
    if command not in re.findall(r"^  ([a-z-]+) {2,}", (GOLDEN / "cli_help.txt").read_text(), re.M) and not command.startswith("-"):
        return [f"there is no command {command}"]
    own = words[1:words.index("--")] if "--" in words else words[1:]
    options = known_options(command)
    problems += [f"no option {word.split('=')[0]}" for word in own
                 if re.match(r"--?[a-z]", word) and options is not None and word.split("=")[0] not in options]
    problems += [problem_of_setting(own[i + 1], known) for i, word in enumerate(own[:-1]) if word == "--set"]
    if command in OF_A_FILE and (len(own) == 0 or own[0].startswith("-")):
        problems.append("no file is named, which comes first")
    for word in (each for each in own if each.startswith("examples/")):
        if not (ROOT / word).exists():
            problems.append(f"no file {word}")
        elif 'name = "text"' in (ROOT / word).read_text() and not any(each.startswith("data.path=") for each in own):
            problems.append(f"{word} needs --set data.path=TEXT.txt")
    return [each for each in problems if each]


class Commands(unittest.TestCase):
    def test_mistakes_are_found(self):
        known = keys()
        found = {
            "train --set data.name=synthetic": "no file is named, which comes first",
            "train examples/quick.toml --sett a.b=1": "no option --sett",
            "train examples/slow.toml": "no file examples/slow.toml",
            "train examples/quick.toml --set train.epoch=1": "no key train.epoch",
            "train examples/quick.toml --set train.epochs=many": "train.epochs=many: expected a whole number",
            "verify examples/quick.toml --set comm.backend=mpi": "comm.backend=mpi: expected one of",
            "trian examples/quick.toml": "there is no command trian",
            "memory examples/gpt_char.toml -n 2": "examples/gpt_char.toml needs --set data.path=TEXT.txt",
        }
        for command, problem in found.items():
            self.assertIn(problem, "; ".join(problems_of(command.split(), known)), command)
        self.assertEqual(problems_of("launch -n 2 -- ./my_program --anything".split(), known), [])

    def test_lines_of_code_are_read(self):
        text = "## Head\n    trireme runs\ntext\n    trireme no code\n\n```\ntrireme train \\\n  a.toml  # and more\ntrireme launch: said\n```\n"
        self.assertEqual(list(commands_of(text)), [["runs"], ["train", "a.toml"]])
        marked = "<!-- not to be typed: a mistake -->\n    trireme rusn\n    trireme runz\n\nMore:\n\n    trireme runs\n"
        self.assertEqual(list(commands_of(marked)), [["runs"]])

    def test_those_of_the_guides_can_be_typed(self):
        known, wrong, read = keys(), [], 0
        for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
            for words in commands_of(path.read_text()):
                read += 1
                wrong += [f"{path.relative_to(ROOT)}: trireme {' '.join(words)}: {each}" for each in problems_of(words, known)]
        self.assertGreater(read, 60)
        self.assertEqual(wrong, [])

    def test_examples_of_the_helps_can_be_typed(self):
        known, wrong, read = keys(), [], 0
        for path in sorted(GOLDEN.glob("cli_help_*.txt")):
            _, _, examples = path.read_text().partition("Examples:\n")
            for words in commands_of("```\n" + examples + "```\n"):
                read += 1
                wrong += [f"{path.name}: trireme {' '.join(words)}: {each}" for each in problems_of(words, known)]
        self.assertGreater(read, 60)
        self.assertEqual(wrong, [])


if __name__ == "__main__":
    unittest.main()
