#!/usr/bin/env python3
"""Changed paths select the tests of their modules and of those above, and nothing that no change reaches."""
import pathlib
import re
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import select_tests
from select_tests import Tree

# Three layers: base below wire and store, both below train.
SMALL = Tree(
    modules={"base": set(), "wire": {"base"}, "store": {"base"}, "train": {"base", "wire"}},
    programs={"unit_base": {"base"}, "unit_wire": {"wire"}, "unit_store": {"store"}, "unit_train": {"train"},
              "unit_cli": {"cli", "wire"}, "fuzz_corpora": {"store", "wire"}},
    files={"multiproc/modes_test.cpp": {"wire", "train"}, "fault/store_test.cpp": {"store"}},
    texts={"multiproc/modes_test.cpp": '#include "tests/multiproc/mode_table.h"\nbin("rank_steps")\nTEST(ModeTable, A) {}\nTEST_P(Modes, B) {}\n'
                                       "INSTANTIATE_TEST_SUITE_P(Table, Modes, all);\n",
           "fault/store_test.cpp": 'checkout("examples/quick.toml")\nbin("example_store")\nTEST_F(StoreFault, C) {}\n',
           "golden/new_test.cpp": "TEST(New, D) {}\n"},
    targets={"rank_steps", "example_store", "example_other", "bench_wire"})
MODES, STORE, NEW = "multiproc/modes_test.cpp", "fault/store_test.cpp", "golden/new_test.cpp"


def ctest(name, command, label="unit"):
    return {"name": name, "command": [f"/build/bin/{command}"], "properties": [{"name": "LABELS", "value": [label]}]}


class Select(unittest.TestCase):
    def of(self, *changed):
        return select_tests.select(SMALL, changed)

    def test_a_module_selects_itself_and_those_above(self):
        found = self.of("trireme/wire/internal/frame.cpp")
        self.assertEqual(found.programs, {"unit_wire", "unit_train", "unit_cli", "fuzz_corpora"})
        self.assertEqual(found.files, {MODES, NEW})
        self.assertFalse(found.everything)

    def test_a_module_above_leaves_out_those_below(self):
        found = self.of("trireme/train/run/run.cpp")
        self.assertEqual(found.programs, {"unit_train"})
        self.assertNotIn("unit_wire", found.targets)

    def test_a_module_beside_leaves_out_the_mode_table(self):
        found = self.of("trireme/store/disk.cpp")
        self.assertEqual(found.programs, {"unit_store", "fuzz_corpora"})
        self.assertEqual(found.files, {STORE, NEW})

    def test_the_lowest_module_selects_all(self):
        found = self.of("trireme/base/text.h")
        self.assertEqual(found.programs, set(SMALL.programs))
        self.assertEqual(found.files, {MODES, STORE, NEW})

    def test_a_unit_test_selects_its_program_alone(self):
        found = self.of("tests/unit/wire/frame_test.cpp")
        self.assertEqual((found.programs, found.files, found.targets), ({"unit_wire"}, set(), {"unit_wire"}))

    def test_a_source_of_whole_programs_selects_itself_and_what_it_starts(self):
        found = self.of("tests/multiproc/modes_test.cpp")
        self.assertEqual(found.files, {MODES})
        self.assertEqual(found.targets, {"multiproc", "rank_steps", "trireme", "trireme-torch"})
        self.assertEqual(self.of("tests/multiproc/mode_table.h").files, {MODES})

    def test_a_started_program_selects_who_starts_it(self):
        self.assertEqual(self.of("tests/ranks/steps.cpp").files, {MODES})
        self.assertEqual(self.of("examples/store.cpp").files, {STORE})
        self.assertEqual(self.of("examples/quick.toml").files, {STORE})

    def test_pages_and_public_headers_select_the_tests_of_pages(self):
        for path in ("docs/data.md", "README.md", "bench/results/ps.md", "examples/store.cpp", "trireme/store/disk.h"):
            self.assertIn("Docs.", self.of(path).scripts, path)
        self.assertEqual(self.of("docs/data.md").programs, set())
        self.assertIn("example_other", self.of("docs/data.md").targets)
        self.assertNotIn("Docs.", self.of("trireme/store/disk.cpp").scripts)

    def test_what_no_rule_covers_selects_everything(self):
        for path in ("CMakeLists.txt", "cmake/TriremeTests.cmake", "tools/test.sh", "tests/CMakeLists.txt", "tests/support/ports.cpp",
                     "tests/docs/CMakeLists.txt", ".ci/run", "VERSION", "trireme/all.h", "trireme/unheard/of.cpp", "LICENSE",
                     "tests/ranks/unused.cpp", "tests/install/plain.sh", "examples/unused.cpp"):
            self.assertTrue(self.of("trireme/store/disk.cpp", path).everything, path)

    def test_nothing_changed_selects_the_scripts_that_always_run(self):
        found = self.of()
        self.assertEqual((found.programs, found.files, found.targets), (set(), set(), set()))
        self.assertIn("Layout.", found.scripts)

    def test_numbers_are_those_of_the_selection(self):
        found = self.of("trireme/store/disk.cpp")
        tests = [ctest("Frame.A", "unit_wire"), ctest("Disk.A", "unit_store"), ctest("Table/Modes.B/1", "multiproc", "multiproc"),
                 ctest("StoreFault.C", "fault", "fault"), ctest("Layout.TreeMatchesTheTable", "python3"),
                 ctest("Docs.CommandsRun", "python3"), {"name": "gpu_NOT_BUILT"}]
        numbers, left_out = select_tests.numbers(SMALL, found, tests)
        self.assertEqual(numbers, [2, 4, 5])
        self.assertEqual(left_out, {"unit": 2, "multiproc": 1, "not built": 1})
        lines = "\n".join(select_tests.describe(SMALL, found, left_out))
        for words in ("left out: 4 test programs: unit_base unit_cli unit_train unit_wire", "left out: 1 sources of multiproc: modes",
                      "1 tests of label multiproc, 1 programs not built, 2 tests of label unit"):
            self.assertIn(words, lines)

    def test_suites_are_named_as_ctest_names_them(self):
        self.assertEqual(select_tests.suites_of(SMALL.texts[MODES]), {"ModeTable", "Table/Modes"})


class PresentTree(unittest.TestCase):
    tree = select_tests.read_tree()

    def test_every_line_is_of_a_source_that_is_there_and_of_known_modules(self):
        self.assertLessEqual(set(self.tree.files), set(self.tree.texts), "tests/exercises.txt names sources that are gone")
        known = set(self.tree.modules) | {select_tests.COMMANDS}
        for file, modules in self.tree.files.items():
            self.assertLessEqual(modules, known, file)
            self.assertTrue(modules, file)

    def test_every_test_program_is_known(self):
        text = (ROOT / "tests/CMakeLists.txt").read_text()
        named = set(re.findall(r"trireme_tests\((\w+) ", text)) | {"fuzz_corpora"}
        units = {f"unit_{path.name}" for path in (ROOT / "tests/unit").iterdir() if path.is_dir()}
        self.assertEqual(set(self.tree.programs), named | units)
        for name, modules in self.tree.programs.items():
            self.assertTrue(modules, name)
            self.assertLessEqual(modules, set(self.tree.modules) | {select_tests.COMMANDS}, name)

    def test_every_started_program_is_found(self):
        for file, text in self.tree.texts.items():
            started = set(re.findall(r'bin\("([\w.-]+)"\)', text)) - {"trireme", "trireme-torch"}
            self.assertLessEqual({name.removesuffix(".so") for name in started}, select_tests.programs_of(self.tree, file), file)

    def test_changes_of_single_modules_leave_out_what_they_do_not_reach(self):
        of = {module: select_tests.select(self.tree, [f"trireme/{module}/a.cpp"]) for module in self.tree.modules}
        self.assertEqual(of["base"].programs, set(self.tree.programs))
        self.assertEqual(of["base"].files, set(self.tree.texts))
        self.assertNotIn("multiproc/modes_test.cpp", of["ps"].files)
        self.assertTrue({"unit_wire", "unit_ps", "unit_data", "unit_topology"}.isdisjoint(of["train"].programs))
        self.assertIn("multiproc/modes_test.cpp", of["parallel"].files)
        self.assertTrue(all(f"unit_{module}" in found.programs for module, found in of.items() if f"unit_{module}" in self.tree.programs))


if __name__ == "__main__":
    unittest.main()
