#!/usr/bin/env python3
"""README, guides and messages use the field's terms: none has a phrase that tests/docs/phrases.toml lists, and each page has the terms
that it requires. Messages are the string literals of cli/ and of the modules of trireme/, which are checked folder by folder. Comments of all
C++ files are checked, too.

    phrases_test.py             the rules, every page, every folder
    phrases_test.py --shrink    writes the list `not_yet` again: numbers that have fallen, without what keeps the rules
"""
import pathlib
import re
import sys
import tomllib
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]

RULES = tomllib.loads((ROOT / "tests/docs/phrases.toml").read_text())


def prose_of(text):
    """(number of the line, its prose): no code, no code spans, no targets of links."""
    fenced, comment, indented, blank = False, False, False, True
    for number, line in enumerate(text.split("\n"), 1):
        fence = re.match(r" {0,3}(```|~~~)", line)
        comment |= line.startswith("<!--") and not fenced
        indented = line.startswith("    ") and (blank or indented)
        blank = not line.strip()
        is_prose = not (fence or fenced or comment or indented)
        fenced ^= bool(fence)
        comment &= "-->" not in line
        yield number, re.sub(r"\]\([^)]*\)", "]", line) if is_prose else ""


def matches(words, avoid):
    """(place, phrase, instead) of each that is there."""
    for phrase, instead in avoid.items():
        for found in re.finditer(rf"\b(?:{phrase})\b".replace(" ", r"\s+"), words, re.I):
            yield found.start(), re.sub(r"\s+", " ", found[0]), instead


def phrases_in(text, avoid):
    """(line, phrase, instead) of each in the prose of a page."""
    lines = list(prose_of(text))
    prose = "\n".join(line for _, line in lines)
    prose = re.sub(r"`[^`]*`", lambda span: re.sub(r"[^\n]", "`", span[0]), prose)
    for place, phrase, instead in matches(prose, avoid):
        yield prose.count("\n", 0, place) + 1, phrase, instead


# A comment, a character, a raw string, a string.
TOKEN = re.compile(r'''//[^\n]*|/\*.*?\*/|'(?:[^'\\\n]|\\.)+'|R"(\w*)\((.*?)\)\1"|"((?:[^"\\\n]|\\.)*)"''', re.S)


def literals(source):
    """(line, text) of the string literals of C++; those that follow each other directly are one."""
    together, end = None, 0
    for token in TOKEN.finditer(source):
        words = token[2] if token[2] is not None else token[3]
        if words is None or source[source.rfind("\n", 0, token.start()) + 1:token.start()].strip() == "#include":
            continue
        if together and not source[end:token.start()].strip():
            together = (together[0], together[1] + words)
        else:
            if together:
                yield together
            together = (source.count("\n", 0, token.start()) + 1, words)
        end = token.end()
    if together:
        yield together


def phrases_in_messages(source, rules):
    """(line, phrase, instead) of each in the string literals of a source, but for those that are names of formats."""
    for line, words in literals(source):
        if words not in rules["formats"]:
            yield from ((line, phrase, instead) for _, phrase, instead in matches(words.replace("\\n", "\n"), rules["avoid"]))


def comments(source):
    """(line, text) of the comments of C++; those on consecutive lines are one."""
    together, last = None, -1
    for token in TOKEN.finditer(source):
        if token[0][:2] not in ("//", "/*"):
            continue
        line = source.count("\n", 0, token.start()) + 1
        words = token[0].lstrip("/*< ")
        is_alone = not source[source.rfind("\n", 0, token.start()) + 1:token.start()].strip()
        if together and is_alone and line == last + 1:
            together = (together[0], together[1] + " " + words)
        else:
            if together:
                yield together
            together = (line, words)
        last = line
    if together:
        yield together


def phrases_in_comments(source, rules):
    """(line, phrase, instead) of each in the comments of a source, but for code spans."""
    any_phrase = re.compile("|".join(rf"\b(?:{phrase})\b".replace(" ", r"\s+") for phrase in rules["avoid"]), re.I)
    for line, words in comments(source):
        prose = re.sub(r"`[^`]*`", "`", words)
        if any_phrase.search(prose):
            yield from ((line, phrase, instead) for _, phrase, instead in matches(prose, rules["avoid"]))


def terms_missing(text, terms):
    words = re.sub(r"\s+", " ", text).lower()
    return [term for term in terms if term.lower() not in words]


def released_left_out(name, text):
    """A changelog is checked up to its first release."""
    return re.split(r"(?m)^## \[\d", text)[0] if name == "CHANGELOG.md" else text


def checked():
    for path in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]:
        name = str(path.relative_to(ROOT))
        yield name, released_left_out(name, path.read_text())


def folders():
    """{name: its sources} of the command line and of each module."""
    modules = sorted(path for path in (ROOT / "trireme").iterdir() if path.is_dir())
    return {f"{path.relative_to(ROOT)}/": sorted(path.rglob("*.[ch]*")) for path in (ROOT / "cli", *modules)}


def problems_of_messages(sources):
    return [f"{path.relative_to(ROOT)}:{line}: '{phrase}': write: {instead}" for path in sources
            for line, phrase, instead in phrases_in_messages(path.read_text(), RULES)]


def all_problems():
    """{page or folder: its problems}"""
    return ({name: problems_of(name, text) for name, text in checked()}
            | {name: problems_of_messages(sources) for name, sources in folders().items()})


def problems_of(name, text, rules=None):
    rules = rules or RULES
    return ([f"{name}:{line}: '{phrase}': write: {instead}" for line, phrase, instead in phrases_in(text, rules["avoid"])]
            + [f"{name}: the term '{term}' is missing; tests/docs/phrases.toml requires it"
               for term in terms_missing(text, rules["required"].get(name, []))])


class Comments(unittest.TestCase):
    def test_phrases_are_found_in_comments_alone(self):
        source = 'int nobody = 1;  ///< what `nobody` is to\n// blame for, and no rank gets\n// on\nauto text = "nobody"; /* anew */\n'
        self.assertEqual([(line, phrase) for line, phrase, _ in phrases_in_comments(source, RULES)],
                         [(1, "to blame"), (1, "gets on"), (4, "anew")])

    def test_no_comment_has_a_phrase_of_the_list(self):
        found = [f"{path.relative_to(ROOT)}:{line}: '{phrase}': write: {instead}"
                 for folder in ("trireme", "cli", "tests", "examples", "bench") for path in sorted((ROOT / folder).rglob("*"))
                 if path.suffix in (".cpp", ".h") for line, phrase, instead in phrases_in_comments(path.read_text(), RULES)]
        self.assertEqual(found, [])


class Rules(unittest.TestCase):
    def test_phrases_are_found_in_prose_alone(self):
        text = ("# It goes on\n\nReplicas share\nout what they hold. `nobody` [a](anew.md)\n\n"
                "    nobody\n\n```sh\nnobody\n```\n<!-- nobody\nnobody -->\nThe rest is fine.\n")
        self.assertEqual([(line, phrase) for line, phrase, _ in phrases_in(text, RULES["avoid"])],
                         [(3, "share out"), (1, "goes on")])

    def test_phrases_are_whole_words(self):
        self.assertEqual(list(phrases_in("Recommended besides; behind a firewall; a stand-in stands in for a GPU.", RULES["avoid"])), [])

    def test_terms_that_are_missing_are_named(self):
        rules = {"avoid": {}, "required": {"a.md": ["gradient accumulation", "FSDP"]}}
        self.assertEqual(problems_of("a.md", "# Gradient\naccumulation\n", rules),
                         ["a.md: the term 'FSDP' is missing; tests/docs/phrases.toml requires it"])

    def test_messages_are_string_literals_as_the_compiler_joins_them(self):
        source = ('#include "nobody.h"\n// nobody\nchar c = \'"\';  /* "nobody" */\ntext("ranks go "\n     "on, ", n, " at",\n'
                  ' R"(nobody)", "refused: ", \'x\', "a\\"nobody\\"");')
        self.assertEqual(list(literals(source))[0], (4, "ranks go on, "))
        rules = {"avoid": RULES["avoid"], "formats": ["refused: "]}
        self.assertEqual([(line, phrase) for line, phrase, _ in phrases_in_messages(source, rules)],
                         [(4, "go on"), (6, "nobody"), (6, "nobody")])

    def test_a_changelog_is_read_up_to_its_first_release(self):
        self.assertEqual(released_left_out("CHANGELOG.md", "## [Unreleased]\na\n## [0.1.0]\nb\n"), "## [Unreleased]\na\n")


class PagesAndMessages(unittest.TestCase):
    def test_they_have_no_phrase_of_the_list_and_all_required_terms(self):
        found = [each for name, problems in all_problems().items() if name not in RULES["not_yet"] for each in problems]
        self.assertEqual(found, [])

    def test_those_that_are_excused_still_need_it_and_get_no_worse(self):
        found = all_problems()
        for name, most in RULES["not_yet"].items():
            self.assertIn(name, found, "a page or folder of the list not_yet that is not there")
            self.assertGreater(len(found[name]), 0, f"{name} keeps the rules: strike it from the list not_yet of tests/docs/phrases.toml")
            self.assertLessEqual(len(found[name]), most, f"{name} has {len(found[name])}; at most {most} are excused:\n" + "\n".join(found[name]))

    def test_names_of_formats_are_used(self):
        used = {words for sources in folders().values() for path in sources for _, words in literals(path.read_text())}
        self.assertEqual([each for each in RULES["formats"] if each not in used], [])

    def test_pages_with_required_terms_are_there(self):
        self.assertEqual([name for name in RULES["required"] if not (ROOT / name).exists()], [])


def shrunk(text, found):
    """The text of phrases.toml with the numbers that were found, where they are smaller."""
    head, _, rows = text.partition("[not_yet]\n")
    for name, most in tomllib.loads(rows).items():
        number = min(most, found.get(name, 0))
        head_of_row = f'"{name}" = '
        rows = rows.replace(f"{head_of_row}{most}\n", f"{head_of_row}{number}\n" if number else "")
    return f"{head}[not_yet]\n{rows}"


class List(unittest.TestCase):
    def test_it_only_shrinks(self):
        text = 'a = 1\n[not_yet]\n"b.md" = 3\n"c.md" = 2\n"d.md" = 1\n'
        self.assertEqual(shrunk(text, {"b.md": 2, "c.md": 5}), 'a = 1\n[not_yet]\n"b.md" = 2\n"c.md" = 2\n')


if __name__ == "__main__":
    if sys.argv[1:] != ["--shrink"]:
        unittest.main()
    path = ROOT / "tests/docs/phrases.toml"
    path.write_text(shrunk(path.read_text(), {name: len(problems) for name, problems in all_problems().items()}))
