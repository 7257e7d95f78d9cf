#!/usr/bin/env python3
"""The C++ of README and guides compiles against the headers of this tree.

    snippets_test.py                the rules, and that texts of examples are those of the examples
    snippets_test.py BUILD_FOLDER   compiles all snippets, with the options of examples/own_loop.cpp

A page is one namespace. A snippet is a body of a function in it, a snippet with a struct, class or function stands in the
namespace itself, and a snippet with `int main(` and nothing given is a source of its own. A line `...` is left out.
A comment directly before a snippet says more:

    <!-- snippet given: CODE -->          declarations before it, which later snippets of the page see as well
    <!-- snippet from: examples/FILE -->  the same text stands in that file, which the build compiles
    <!-- snippet not compiled: REASON -->
"""
import json
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile
import unittest
from dataclasses import dataclass

ROOT = pathlib.Path(__file__).resolve().parents[2]
OPTIONS = ["-fsyntax-only", "-Wno-shadow", *(f"-Wno-unused-{each}" for each in
           ("variable", "but-set-variable", "function", "parameter", "local-typedefs"))]
NAMESPACE_SCOPE = re.compile(r"^(struct|class|template|int main\(|[\w:<>]+ [\w:]+\([^;]*\) \{)", re.M)
_BLOCK = re.compile(r"(?:^<!-- snippet (?P<mark>given|from|not compiled):[ \n](?P<said>.*?) ?-->\n)?"
                    r"^```(?P<language>\w*)\n(?P<code>.*?)^```$", re.M | re.S)


@dataclass(frozen=True)
class Snippet:
    """Code of a page, with the line where it begins, and what the comment before it says."""
    page: str
    language: str
    line: int
    code: str
    mark: str = ""
    said: str = ""
    said_line: int = 0

    def given(self):
        return self.said if self.mark == "given" else ""

    def is_program(self):
        return "int main(" in self.code and not self.given()


def snippets_of(page, text):
    for block in _BLOCK.finditer(text):
        line_of = lambda group: text.count("\n", 0, block.start(group)) + 1
        mark = block["mark"] or ""
        yield Snippet(page, block["language"], line_of("code"), block["code"], mark, block["said"] or "",
                      line_of("said") if mark else 0)


def marks_without_a_snippet(text):
    return len(re.findall(r"^<!-- snippet", text, re.M)) - sum(1 for block in _BLOCK.finditer(text) if block["mark"])


def looks_like_cpp(line):
    return line.startswith("    ") and re.search(r"[)\w}];( *//.*)?$", line) is not None and "::" in line


def placed(snippet, line, code):
    code = re.sub(r"(?m)^ *\.\.\.$", "", code)
    return f'#line {line} "{snippet.page}"\n{code}\n'


def source_of(snippets):
    """One source of all snippets: includes come first."""
    includes, pages, code = [], {}, ""
    for snippet in snippets:
        for text in (snippet.given(), snippet.code):
            includes += re.findall(r"^#include .*$", text, re.M)
        pages.setdefault(snippet.page, []).append(snippet)
    for number, of_page in enumerate(pages.values()):
        code += f"namespace page_{number} {{\n"
        for i, snippet in enumerate(of_page):
            given, own = (re.sub(r"(?m)^#include .*$", "", text) for text in (snippet.given(), snippet.code))
            code += placed(snippet, snippet.said_line, given) if given else ""
            own = placed(snippet, snippet.line, own)
            code += own if NAMESPACE_SCOPE.search(snippet.code) else f"void snippet_{i}() {{\n{own}}}\n"
        code += "}\n"
    return "\n".join(dict.fromkeys(includes)) + "\n" + code


def compiler(build):
    """The command that compiles examples/own_loop.cpp, without its source and its object; and the folder to be in."""
    for entry in json.loads((build / "compile_commands.json").read_text()):
        if entry["file"] == str(ROOT / "examples/own_loop.cpp"):
            words = shlex.split(entry["command"])
            return words[:words.index("-o")] + OPTIONS, entry["directory"]
    raise SystemExit(f"{build}/compile_commands.json has no examples/own_loop.cpp: configure with -DTRIREME_BUILD_EXAMPLES=ON")


def without_precompiled_header(command):
    at = command.index("-include")
    return command[:at] + command[at + 2:]


def errors_of(snippets, build):
    """Messages of the compiler, which name pages and lines."""
    command, folder = compiler(build)
    programs = [each for each in snippets if each.is_program()]
    sources = [(command, source_of([each for each in snippets if not each.is_program()]))]
    sources += [(without_precompiled_header(command), placed(each, each.line, each.code)) for each in programs]
    out = ""
    with tempfile.TemporaryDirectory() as name:
        for command, source in sources:
            path = pathlib.Path(name) / "snippets.cpp"
            path.write_text(source)
            done = subprocess.run([*command, path], cwd=folder, stderr=subprocess.PIPE, text=True, timeout=280)
            out += done.stderr or "" if done.returncode == 0 else done.stderr or f"{command[0]}: exit code {done.returncode}\n"
    return out


def guides():
    for path in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        yield str(path.relative_to(ROOT)), path.read_text()


def snippets_of_guides():
    return [each for page, text in guides() for each in snippets_of(page, text)]


def to_compile(snippets):
    return [each for each in snippets if each.language == "cpp" and each.mark in ("", "given")]


class Rules(unittest.TestCase):
    def test_a_comment_belongs_to_the_code_after_it(self):
        text = "# A\n\n<!-- snippet given:\nint x;\n-->\n```cpp\nx = 1;\n```\n\n```cpp\nint y;\n```\n"
        self.assertEqual(list(snippets_of("a.md", text)), [Snippet("a.md", "cpp", 7, "x = 1;\n", "given", "int x;\n", 4),
                                                           Snippet("a.md", "cpp", 11, "int y;\n")])
        self.assertEqual(marks_without_a_snippet(text), 0)
        self.assertEqual(marks_without_a_snippet("<!-- snippet given: int x; -->\n\ntext\n```cpp\nx;\n```\n"), 1)

    def test_statements_declarations_and_programs_are_told_apart(self):
        self.assertFalse(NAMESPACE_SCOPE.search("f(x);\nfor (;;) {\n}\nreturn f(x);\nauto f = [] {\n};\n"))
        for code in ("struct A {\n};\n", "double add(double a, double b) { return a + b; }\n", "#include <a>\n\nint main() {\n}\n"):
            self.assertTrue(NAMESPACE_SCOPE.search(code), code)

    def test_includes_come_first_and_lines_are_those_of_the_page(self):
        text = "<!-- snippet given: int x = 0; -->\n```cpp\n#include <a>\n...\nx = 1;\n```\n\n```cpp\n#include <a>\nint f() { return 1; }\n```\n"
        self.assertEqual(source_of(list(snippets_of("a.md", text))),
                         '#include <a>\nnamespace page_0 {\n#line 1 "a.md"\nint x = 0;\n'
                         'void snippet_0() {\n#line 3 "a.md"\n\n\nx = 1;\n\n}\n#line 9 "a.md"\n\nint f() { return 1; }\n\n}\n')


class Texts(unittest.TestCase):
    def test_text_from_a_file_is_in_that_file(self):
        named = [each for each in snippets_of_guides() if each.mark == "from"]
        self.assertGreater(len(named), 4)
        for each in named:
            self.assertIn(f"\n{each.code}", (ROOT / each.said).read_text(), f"{each.page}:{each.line} differs from {each.said}")

    def test_every_comment_belongs_to_a_snippet(self):
        for page, text in guides():
            self.assertEqual(marks_without_a_snippet(text), 0, f"{page}: a comment '<!-- snippet' is not directly before code, or is not one")

    def test_cpp_stands_between_fences(self):
        for page, text in guides():
            for number, line in enumerate(text.split("\n"), 1):
                self.assertFalse(looks_like_cpp(line) and not any(
                    each.line <= number < each.line + each.code.count("\n") for each in snippets_of(page, text)),
                    f"{page}:{number}: C++ that is indented is not compiled: put it between ```cpp and ```")


def compiles(build):
    snippets = to_compile(snippets_of_guides())
    wrong = Snippet("wrong.md", "cpp", 7, "int x = no_such_name;\n")
    if "wrong.md:7:" not in errors_of([wrong], build):
        return "a mistake in a snippet was not found\n"
    return errors_of(snippets, build)


if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        unittest.main()
    errors = compiles(pathlib.Path(sys.argv[1]))
    sys.stderr.write(errors)
    sys.exit(1 if errors else 0)
