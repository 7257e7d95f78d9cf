#!/usr/bin/env python3
"""Configuration keys that messages and guides name exist."""
import pathlib
import re
import tomllib
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
WORD = re.compile(r'(?<![\w./\-"{*\\])([a-z][a-z_]*)\.([a-z][a-z0-9_]*)(?![\w./(*:-])')
# A dot in a word also stands in names of files, of Python, of calls between processes, of fields of ps::TableSpec and of described
# machines (docs/machines.md).
FILES = {"bin", "csv", "h", "html", "json", "jsonl", "key", "lock", "log", "npz", "pkl", "pt", "safetensors", "secret", "snapshot", "so", "svg", "toml",
         "txt", "current", "max", "stat", "limit_in_bytes", "usage_in_bytes", "cfs_quota_us", "cfs_period_us"}
OTHERS = {"compression", "delay", "device", "events", "hosts", "links", "ln_f", "np", "numpy", "pickle", "rows", "std", "torch", "trireme", "wpe", "wte"}
KNOWN = {"table.key", "c_proj.weight", "out_proj.bias", "worker.all", "observer.team", "observer.status"}


def keys():
    """Those of the table in docs/configuration.md, which another test compares with the program."""
    return set(re.findall(r"^\| `([a-z_]+\.[a-z0-9_]+)` \|", (ROOT / "docs/configuration.md").read_text(), re.M))


def texts_of(source):
    """The literals of a source, those that follow one another as one."""
    source = re.sub(r"^\s*#include.*$", "", source, flags=re.M)
    source = re.sub(r"(^|\s)//.*$", "", source, flags=re.M)
    source = re.sub(r'"\s*\n\s*"', "", source.replace("'\"'", "' '"))
    return [match.group(1).replace("\\n", " ") for match in re.finditer(r'"((?:[^"\\\n]|\\.)*)"', source)]


def taken_for_keys(text):
    return [match.group() for match in WORD.finditer(text)
            if match.group(2) not in FILES and match.group(1) not in OTHERS and match.group() not in KNOWN]


class Keys(unittest.TestCase):
    def test_a_word_with_a_dot_is_taken_for_a_key(self):
        self.assertEqual(taken_for_keys("take activations.checkpoint, or model.block; see run.toml, torch.save and e.g. this."),
                         ["activations.checkpoint", "model.block"])
        self.assertEqual(texts_of('require(x, "set data."\n  "block"); // "no.text"\n'), ["set data.block"])

    def test_those_in_messages_are_keys(self):
        known, wrong, read = keys(), [], 0
        for path in sorted(path for folder in ("trireme", "cli") for path in (ROOT / folder).rglob("*.[ch]*")):
            for text in texts_of(path.read_text()):
                found = taken_for_keys(text)
                read += len(found)
                wrong += [f"{path.relative_to(ROOT)}: '{each}' is no key of a configuration" for each in found if each not in known]
        self.assertGreater(read, 500)
        self.assertEqual(wrong, [])

    def test_those_in_guides_are_keys(self):
        known, wrong = keys(), []
        tables = {key.split(".")[0] for key in known}
        for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
            for span in re.findall(r"`([a-z_]+\.[a-z0-9_]+)(?: = [^`]*)?`", path.read_text()):
                table, key = span.split(".")
                if table in tables and key not in FILES and span not in known:
                    wrong.append(f"{path.relative_to(ROOT)}: `{span}` is no key of a configuration")
        self.assertEqual(wrong, [])

    def test_those_of_toml_in_guides_are_keys(self):
        known, wrong, read = keys(), [], 0
        for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
            for code in re.findall(r"^```toml\n(.*?)^```$", path.read_text(), re.M | re.S):
                for table, values in tomllib.loads(code).items():
                    for key in values if isinstance(values, dict) else ():
                        read += 1
                        if f"{table}.{key}" not in known:
                            wrong.append(f"{path.relative_to(ROOT)}: [{table}] {key} is no key of a configuration")
        self.assertGreater(read, 20)
        self.assertEqual(wrong, [])


if __name__ == "__main__":
    unittest.main()
