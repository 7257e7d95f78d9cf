#!/usr/bin/env python3
"""What the scripts of `make docs` make of small headers and pages.

    docs_test.py                   the scripts
    docs_test.py --tree FOLDER     all that `make docs` looks at in this tree, working in FOLDER
"""
import fnmatch
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools/docs"))
import headers
import input
import pages
import site_pages as site
import snippets_test
import undocumented

OPENING = "#pragma once\n// What the header is.\n\nnamespace trireme::a {\n\n"
END = "\n}  // namespace trireme::a\n"


def read(body, path="trireme/a/own_name.h"):
    return headers.as_doxygen_reads_it(pathlib.PurePath(path), OPENING + body + END)


class Headers(unittest.TestCase):
    def test_plain_comments_before_and_behind_declarations_are_said(self):
        out = read("// Of this one.\nstruct OwnName {\n  int a = 0;  // of a\n              // and more\n};\n")
        self.assertIn("/// Of this one.\nstruct OwnName {\n  int a = 0;  ///< of a\n              ///< and more\n", out)

    def test_a_comment_holds_up_to_the_next_blank_line(self):
        out = read("struct OwnName {\n  /// Both.\n  void one();\n  void two(int x);\n\n  void three(int x);\n};\n")
        self.assertIn("  /** Both. */ void two(int x);", out)
        self.assertIn("\n  void three(int x);", out)

    def test_a_comment_holds_for_no_field_and_nothing_that_is_evident(self):
        out = read("class OwnName {\n public:\n  /// One.\n  int one();\n  int field = 0;\n  OwnName(const OwnName&) = delete;\n"
                   "  bool operator==(const OwnName&) const;\n  int size() const;\n};\n")
        self.assertEqual(out.count("One."), 1)

    def test_a_comment_of_a_type_does_not_hold_inside_of_it(self):
        self.assertEqual(read("/// The type.\nclass OwnName {\n  void one(int x);\n};\n").count("The type."), 1)

    def test_the_opening_comment_is_the_headers_and_its_name_sakes(self):
        out = read("struct Options {};\n\nclass OwnName {};\n")
        self.assertTrue(out.startswith("/// @file\n/// What the header is.\n"), out)
        self.assertIn("\nstruct Options {};", out)
        self.assertIn("/** @copydoc trireme/a/own_name.h */ class OwnName {};", out)

    def test_a_forward_declaration_takes_no_comment(self):
        out = read("class Other;\n\nvoid make(int x);\n")
        self.assertIn("\nclass Other;", out)
        self.assertIn("/** @copydoc trireme/a/own_name.h */ void make", out)

    def test_remarks_and_code_stay_what_they_are(self):
        body = "// A remark.\n\n/// Runs.\ninline void OwnName() {\n  // Inside.\n  int x = 0;  // behind\n}\n"
        out = read(body)
        self.assertIn("\n// A remark.\n", out)
        self.assertIn("  // Inside.\n  int x = 0;  // behind\n", out)

    def test_text_is_no_command_and_lines_stay(self):
        body = '/// a@b, <pid>, 5% of #3, `x<y>` and Group::rank().\nvoid OwnName(const char* text = "tcp://x");\n'
        out = read(body)
        self.assertIn(r"/// a\@b, \<pid\>, 5\% of \#3, `x<y>` and Group::rank().", out)
        self.assertIn('"tcp://x");\n', out)
        self.assertEqual(out.count("\n"), (OPENING + body + END).count("\n"))

    def test_indented_examples_are_code(self):
        self.assertIn("///\n///       f(a<b>);\n", read("/// So:\n///\n///   f(a<b>);\nvoid OwnName(int x);\n"))


class Pages(unittest.TestCase):
    def page(self, text):
        site = pages.Site(ROOT, {"docs/one.md": text, "docs/wire.md": "# W\n\n## A channel's end\n"}, {"trireme/wire/node.h": "api/node_8h.html"})
        return site.page("docs/one.md"), site.problems

    def test_links_lead_to_pages_headings_headers_and_examples(self):
        out, problems = self.page("# One\n\n[a](wire.md) [b](wire.md#a-channels-end) [c](../trireme/wire/node.h) [d](../examples/own_loop.cpp)\n"
                                  "[e](../cli/command.h)\n")
        self.assertIn("[a](wire.md) [b](wire.md#a-channels-end) <a href=\"../api/node_8h.html\">c</a> [d](../examples/own_loop.cpp.md)\n"
                      "e (`cli/command.h`)", out)
        self.assertEqual(problems, [])

    def test_dead_links_are_named(self):
        problems = self.page("# One\n\n[a](nowhere.md) [b](wire.md#nothing)\n")[1]
        self.assertEqual(problems, ["docs/one.md: a link to nowhere.md, which is not there",
                                    "docs/one.md: a link to wire.md#nothing: docs/wire.md has no such heading"])

    def test_code_is_left_alone(self):
        code = "    [](const Tensor& x) { return x; }\n\n```cpp\n# a <b> [x](y)\n```\n"
        out, problems = self.page(f"# One\n\n{code}\n`[x](y)`\n")
        self.assertIn("    [](const Tensor& x) { return x; }\n", out)
        self.assertIn("# a <b> [x](y)\n", out)
        self.assertEqual(problems, [])
        self.assertIn("## Two\n\n    kill <pid>\n", self.page("# One\n\n## Two\n    kill <pid>\n")[0])

    def test_words_in_angle_brackets_are_no_tags(self):
        self.assertIn("kill &lt;pid>, `Group<T>`, 1 < 2", self.page("# One\n\nkill <pid>, `Group<T>`, 1 < 2\n")[0])

    def test_lists_fences_and_bars_are_as_python_markdown_reads_them(self):
        out = self.page("# One\n\nText:\n- a\n  more\n  - b\n- c\n```\ncode\n```\n| `a \\| b` |\n")[0]
        self.assertIn("Text:\n\n- a\n  more\n    - b\n- c\n\n```\ncode\n```\n| `a | b` |\n", out)


class Navigation(unittest.TestCase):
    def test_it_is_that_of_the_index(self):
        texts = {file: (ROOT / file).read_text() for file in input.files("*.md", "docs/*.md", "docs/adr/*.md", "bench/results/*.md")
                 if "/0000-" not in file}
        sections, unnamed = site.navigation(texts)
        self.assertEqual([name for each in sections for name in each],
                         ["Home", "All pages", "Get started", "How-to guides", "Concepts", "Reference", "Contributing"])
        self.assertEqual(unnamed, [])
        first = next(iter(sections[2]["Get started"][0].values()))
        self.assertEqual(first, "docs/start-loop.md")
        self.assertIn({"C++ reference": "api/index.html"}, sections[5]["Reference"])


class FirstPages(unittest.TestCase):
    """docs/start-*.md"""

    def each(self):
        found = sorted((ROOT / "docs").glob("start-*.md"))
        self.assertGreater(len(found), 3)
        for path in found:
            yield path.name, path.read_text()

    def test_their_code_is_that_of_the_examples_which_the_tests_run(self):
        for name, text in self.each():
            shown = [each for each in snippets_test.snippets_of(name, text) if each.language in ("cpp", "toml")]
            self.assertGreater(len(shown), 0, f"{name} shows no program")
            for each in shown:
                self.assertEqual(each.mark, "from", f"{name}:{each.line}: say from which example the text is")

    def test_they_begin_with_a_program_and_give_reasons_in_short_paragraphs(self):
        for name, text in self.each():
            self.assertLess(text.index("\n```"), text.index("\n|"), f"{name}: a program comes before its table")
            self.assertLess(text.index("\n|"), text.index("\n## Why"), f"{name}: a table comes before the reasons")
            for paragraph in re.split(r"\n\n+", re.sub(r"```.*?```\n", "\n", text, flags=re.S)):
                if not paragraph.startswith(("|", "- ", "    ")):
                    lines = [line for line in paragraph.strip().split("\n") if not line.startswith("#")]
                    self.assertLessEqual(len(lines), 5, f"{name}: a long paragraph: {paragraph}")

    def test_readers_find_them_under_get_started(self):
        table = (ROOT / "docs/index.md").read_text().split("## Get started")[1].split("\n## ")[0]
        for name, _ in self.each():
            self.assertIn(f"({name})", table)


class Index(unittest.TestCase):
    """docs/index.md, and README, which leads there"""

    def test_the_index_has_the_kinds_of_pages_and_each_page_once(self):
        text = (ROOT / "docs/index.md").read_text()
        self.assertEqual(re.findall(r"^## (.*)$", text, re.M), ["Get started", "How-to guides", "Concepts", "Reference", "Contributing"])
        rows = "\n".join(line for line in text.split("\n") if line.startswith("|"))
        listed = re.findall(r"\]\((\w[\w-]*\.md)\)", rows)
        there = {path.name for path in (ROOT / "docs").glob("*.md")} - {"index.md"}
        self.assertEqual(sorted(listed), sorted(there), "each page of docs/ is in one row of docs/index.md")

    def test_the_readme_is_short_and_leads_to_each_kind(self):
        text = (ROOT / "README.md").read_text()
        self.assertLessEqual(text.count("\n"), 100)
        for kind in ("get-started", "how-to-guides", "concepts", "reference", "contributing"):
            self.assertIn(f"(docs/index.md#{kind})", text)


class HowTo(unittest.TestCase):
    NAMES = ("mixed-precision", "gradient-accumulation", "fault-tolerance", "choose-parallelism", "performance", "from-pytorch",
             "from-lightning-deepspeed", "troubleshooting", "kubernetes")

    def test_they_say_what_when_and_when_not_before_a_first_example(self):
        for name in self.NAMES:
            text = (ROOT / f"docs/{name}.md").read_text()
            places = [text.find(f"\n**{word}.**") for word in ("What it is", "When to use it", "When not")]
            places += [text.find("\n```"), text.find("\n## ")]
            self.assertNotIn(-1, places, name)
            self.assertEqual(places, sorted(places), name)


def tests_that_there_are():
    """"Suite.Name" of every test, and where it has parameters "Prefix/Suite.Name"."""
    names, prefixes = set(), {}
    for path in sorted((ROOT / "tests").rglob("*_test.cpp")):
        text = path.read_text()
        names |= {f"{suite}.{name}" for suite, name in
                  re.findall(r"^\s*TEST(?:_[FP])?\(\s*(\w+),\s*(\w+)\)", text, re.M)}
        for prefix, suite in re.findall(r"INSTANTIATE_TEST_SUITE_P\(\s*(\w+),\s*(\w+)", text):
            prefixes.setdefault(suite, set()).add(prefix)
        names |= {f"{suite}/0.{name}" for suite, name in re.findall(r"^TYPED_TEST\(\s*(\w+),\s*(\w+)\)", text, re.M)}
    for path in sorted((ROOT / "tests").rglob("CMakeLists.txt")):
        names |= set(re.findall(r"add_test\(NAME ([\w.]+)", path.read_text()))
    return names | {f"{prefix}/{name}" for name in names for prefix in prefixes.get(name.split(".")[0], ())}


def promises(text):
    """Of tables whose last column is tests: (what is promised, patterns of tests), None for "the same"."""
    is_one = False
    for line in text.splitlines():
        cells = [each.strip() for each in line.strip("|").split(" | ")] if line.startswith("|") else []
        if not cells:
            is_one = False
        elif re.match(r"tests?\b", cells[-1]) and len(cells) > 1 and not is_one:
            is_one = True
        elif is_one and not re.fullmatch(r"[-| ]+", line):
            said = [each.replace("...", "*") for each in re.findall(r"`([^` ]+)`", cells[-1]) if not each.startswith("tests/")]
            for i, each in enumerate(said):
                if each.startswith("."):  # of the suite before
                    said[i] = said[i - 1].split(".")[0] + each
            yield cells[0], None if cells[-1].startswith("the same") and not said else said


class Promises(unittest.TestCase):
    """What guides promise, and the tests that they name for it."""

    def test_tables_of_promises_are_read(self):
        text = "| promise | test (`tests/unit`) |\n| --- | --- |\n| one | `A.One`, `.Two...` (`tests/fault`) |\n| two | the same, twice |\n\n| a | b |\n"
        self.assertEqual(list(promises(text)), [("one", ["A.One", "A.Two*"]), ("two", None)])

    def test_every_promise_names_tests_that_there_are(self):
        there, read, nowhere = tests_that_there_are(), 0, []
        for path in sorted((ROOT / "docs").glob("*.md")):
            for promise, patterns in promises(path.read_text()):
                read += 1
                if patterns == []:
                    nowhere.append(f"docs/{path.name}: no test for: {promise}")
                nowhere += [f"docs/{path.name}: there is no test {each}, which is named for: {promise}"
                            for each in patterns or [] if not fnmatch.filter(there, each)]
        self.assertGreater(read, 80)
        self.assertEqual(nowhere, [])


@unittest.skipUnless(shutil.which("doxygen"), "doxygen is not installed; tools/setup.sh docs installs it")
class Undocumented(unittest.TestCase):
    def found(self, body):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            (folder / "own_name.h").write_text(read(body, "own_name.h"))
            settings = f"@INCLUDE = {ROOT}/tools/docs/Doxyfile\nINPUT = own_name.h\nUSE_MDFILE_AS_MAINPAGE =\nGENERATE_HTML = NO\n"
            subprocess.run(["doxygen", "-"], input=settings, cwd=folder, text=True, check=True, timeout=60)
            return [what for _, _, what in undocumented.undocumented(folder / "xml")]

    def test_types_functions_enumerations_and_aliases_are_named(self):
        self.assertEqual(self.found("class OwnName {};\n\nstruct S {\n  int x;\n};\n\nvoid f(int x);\n\nenum class E { kOne };\n\n"
                                    "using A = int;\n\ninline constexpr int kN = 1;\n"),
                         ["struct trireme::a::S", "function trireme::a::f", "enum trireme::a::E", "typedef trireme::a::A",
                          "variable trireme::a::kN"])

    def test_member_functions_that_do_not_explain_themselves_are_named(self):
        self.assertEqual(self.found("class OwnName {\n public:\n  OwnName(int x);\n  ~OwnName();\n  int size() const;\n"
                                    "  bool operator==(const OwnName&) const;\n  void run(int x);\n\n private:\n  void own(int x);\n};\n"),
                         ["function trireme::a::OwnName::run"])

    def test_one_comment_is_enough_for_overloads_and_overriders(self):
        self.assertEqual(self.found("class OwnName {\n public:\n  /// Takes.\n  virtual void take(int x);\n\n  void take(double x);\n};\n\n"
                                    "/// Another.\nclass B : public elsewhere::Base {\n public:\n  void take(int x) override;\n};\n"), [])


def foreign_parts(folder):
    """What pages of the site would fetch from another host."""
    return [f"{path.relative_to(folder)} fetches {each[0] or each[1]}" for path in sorted(folder.rglob("*.html")) if "api" not in path.parts
            for each in re.findall(r'<(?:script|img|iframe)[^>]* src="(https?:[^"]*)|<link rel="(?:stylesheet|preconnect)" href="(https?:[^"]*)',
                                   path.read_text())]


if __name__ == "__main__":
    if sys.argv[1:2] != ["--tree"]:
        unittest.main()
    if not shutil.which("doxygen"):
        print("skipped: doxygen is not installed; tools/setup.sh docs installs it")
        sys.exit(77)
    code = subprocess.run([ROOT / "tools/docs.sh", sys.argv[2]]).returncode
    foreign = foreign_parts(pathlib.Path(sys.argv[2]))
    print(*foreign, sep="\n")
    sys.exit(code or len(foreign) > 0)
