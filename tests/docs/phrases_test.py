#!/usr/bin/env python3
"""README and guides use the field's terms: no page has a phrase that tests/docs/phrases.toml lists, each has the terms that it requires.

    phrases_test.py             the rules, and every page
    phrases_test.py --shrink    writes the list `not_yet` again: numbers that have fallen, without pages that keep the rules
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


def phrases_in(text, avoid):
    """(line, phrase, instead) of each that is there."""
    lines = list(prose_of(text))
    prose = "\n".join(line for _, line in lines)
    prose = re.sub(r"`[^`]*`", lambda span: re.sub(r"[^\n]", "`", span[0]), prose)
    for phrase, instead in avoid.items():
        for found in re.finditer(rf"\b(?:{phrase})\b".replace(" ", r"\s+"), prose, re.I):
            yield prose.count("\n", 0, found.start()) + 1, re.sub(r"\s+", " ", found[0]), instead


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


def problems_of(name, text, rules=None):
    rules = rules or RULES
    return ([f"{name}:{line}: '{phrase}': write: {instead}" for line, phrase, instead in phrases_in(text, rules["avoid"])]
            + [f"{name}: the term '{term}' is missing; tests/docs/phrases.toml requires it"
               for term in terms_missing(text, rules["required"].get(name, []))])


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

    def test_a_changelog_is_read_up_to_its_first_release(self):
        self.assertEqual(released_left_out("CHANGELOG.md", "## [Unreleased]\na\n## [0.1.0]\nb\n"), "## [Unreleased]\na\n")


class Pages(unittest.TestCase):
    def test_pages_have_no_phrase_of_the_list_and_all_required_terms(self):
        found = [each for name, text in checked() if name not in RULES["not_yet"] for each in problems_of(name, text)]
        self.assertEqual(found, [])

    def test_pages_that_are_excused_still_need_it_and_get_no_worse(self):
        texts = dict(checked())
        for name, most in RULES["not_yet"].items():
            self.assertIn(name, texts, "a page of the list not_yet that is not there")
            found = problems_of(name, texts[name])
            self.assertGreater(len(found), 0, f"{name} keeps the rules: strike it from the list not_yet of tests/docs/phrases.toml")
            self.assertLessEqual(len(found), most, f"{name} has {len(found)}; at most {most} are excused:\n" + "\n".join(found))

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
    path.write_text(shrunk(path.read_text(), {name: len(problems_of(name, text)) for name, text in checked()}))
