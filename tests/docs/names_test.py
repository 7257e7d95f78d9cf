#!/usr/bin/env python3
"""C++ names on pages that map other names to them are in the public headers."""
import pathlib
import re
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGES = ("README.md", "docs/glossary.md", *(f"docs/{name}.md" for name in (
    "choose-parallelism", "fault-tolerance", "from-lightning-deepspeed", "from-pytorch", "gradient-accumulation", "mixed-precision",
    "performance", "troubleshooting")))
MODULES = {path.name for path in (ROOT / "trireme").iterdir() if path.is_dir()} - {"base"}
OTHERS = {"torch", "at", "c10", "std", "nn"}


def public_headers():
    return {path: path.read_text() for path in sorted((ROOT / "trireme").rglob("*.h")) if "internal" not in path.parts}


def names_of(text):
    """Qualified names in code spans, as lists of their parts: `Group::all_reduce()`, `model::checkpointed(f, x)`."""
    for span in re.findall(r"`([^`\n]+)`", text):
        for name in re.findall(r"(?<![\w:])[A-Za-z_]\w*(?:::\w+)+", span):
            parts = name.split("::")
            if parts[0] not in OTHERS:
                yield name, [part for part in parts if part != "trireme"]


def is_there(parts, headers):
    """Whether one header of the module has the last name, and a class before it is one."""
    if parts[0] in MODULES:
        headers = {path: text for path, text in headers.items() if path.relative_to(ROOT).parts[1] == parts[0]}
        parts = parts[1:]
    texts = [text for text in headers.values() if all(re.search(rf"\b{part}\b", text) for part in parts)]
    if len(parts) > 1:
        texts = [text for text in texts if re.search(rf"\b(class|struct|enum class) {parts[0]}\b", text)]
    return bool(texts)


class Names(unittest.TestCase):
    def test_names_are_read(self):
        text = "`Group::all_reduce(t)` `torch::optim::SGD` `model::checkpointed(f, x)`, `trireme::Context` and `make_x`"
        self.assertEqual([parts for _, parts in names_of(text)], [["Group", "all_reduce"], ["model", "checkpointed"], ["Context"]])

    def test_mistakes_are_found(self):
        headers = public_headers()
        for wrong in (["Group", "allreduce"], ["model", "LossScaler"], ["ZeroOption", "stage"]):
            self.assertFalse(is_there(wrong, headers), wrong)
        self.assertTrue(is_there(["optim", "LossScaler"], headers))

    def test_those_of_the_pages_are_in_public_headers(self):
        headers, wrong, read = public_headers(), [], 0
        for page in PAGES:
            for name, parts in names_of((ROOT / page).read_text()):
                read += 1
                if not is_there(parts, headers):
                    wrong.append(f"{page}: `{name}` is in no public header")
        self.assertGreater(read, 120)
        self.assertEqual(wrong, [])


if __name__ == "__main__":
    unittest.main()
