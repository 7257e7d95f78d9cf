#!/usr/bin/env python3
"""The faults of tests/mutations/ fit the present sources, and reach every module and every feature of a mode."""
import pathlib
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import mutations
import select_tests
from mutations import Mutation

FEATURES = {"zero 1", "zero 2", "zero 3", "tp", "cp", "pp", "offload to files", "offload to the host", "bf16", "fp16", "accumulation",
            "compression", "gloo", "hosts", "stand-in device", "liveness", "faults", "etcd"}
# It hands its arguments on in one call.
WITHOUT = {"app"}


def mutation(old, new):
    return Mutation(name="made-up", file="a.cpp", old=old, new=new, fault="Made up.")


class Applied(unittest.TestCase):
    TEXT = "int f() {\n  return 1;\n  wait();\n}\n"

    def test_one_line_is_replaced_and_keeps_its_indentation(self):
        self.assertEqual(mutation("return 1;", "return 2;").applied(self.TEXT), "int f() {\n  return 2;\n  wait();\n}\n")

    def test_a_removed_line_stays_empty(self):
        self.assertEqual(mutation("wait();", "").applied(self.TEXT), "int f() {\n  return 1;\n\n}\n")

    def test_a_line_that_is_gone_or_there_twice_is_an_error_with_its_name(self):
        for text in ("int f() {}\n", self.TEXT + self.TEXT):
            with self.assertRaisesRegex(ValueError, "'made-up': a.cpp has [02] lines 'return 1;'"):
                mutation("return 1;", "return 2;").applied(text)


class PresentList(unittest.TestCase):
    def setUp(self):
        self.list = mutations.read_list()
        self.tree = select_tests.read_tree()

    def test_names_differ_and_each_fault_is_one_sentence(self):
        names = [each.name for each in self.list]
        self.assertEqual(len(set(names)), len(names))
        self.assertGreaterEqual(len(names), 48)
        for each in self.list:
            self.assertRegex(each.fault, r"^\S.*\.$", each.name)
            self.assertNotEqual(each.old, each.new, each.name)
            self.assertTrue(each.file.endswith(".cpp"), each.name)

    def test_every_module_and_every_part_of_parallel_has_a_fault(self):
        modules = {each.module for each in self.list}
        self.assertEqual(modules, set(self.tree.modules) - WITHOUT | {select_tests.COMMANDS})
        parts = {each.file.split("/")[2] for each in self.list if each.module == "parallel"}
        self.assertLessEqual({"data", "zero", "pipeline", "tensor", "context"}, parts)

    def test_every_feature_of_a_mode_has_a_fault_whose_suite_is_there(self):
        self.assertLessEqual(FEATURES, {each.feature for each in self.list})
        for each in self.list:
            if each.suite:
                self.assertTrue(mutations.owners_of(self.tree, each.suite), each.name)

    def test_the_tests_of_the_module_come_first_and_those_above_follow(self):
        by_name = {each.name: each for each in self.list}
        stages = mutations.stages_of(self.tree, by_name["parts-overlap"], first_only=False)
        self.assertEqual([sorted(programs) for programs, files, _ in stages if programs][:3],
                         [["unit_data"], ["unit_objective"], ["unit_train"]])
        self.assertTrue(all(not files for programs, files, _ in stages if programs))
        first = mutations.stages_of(self.tree, by_name["zero2-sum-of-the-last"], first_only=False)[0]
        self.assertEqual(first, (set(), {"multiproc/modes_test.cpp"}, "^Table/Modes"))


if __name__ == "__main__":
    unittest.main()
