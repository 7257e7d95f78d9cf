#!/usr/bin/env python3
"""Puts one mistake after another into a small tree that is right, and sees tools/check_layout.py name it."""
import pathlib
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import check_layout

RIGHT = {
    "docs/architecture.md": "# A\n\n## Who may include whom\n\n| module | torch | may include |\n| --- | --- | --- |\n"
                            "| base | no | - |\n| wire | no | base |\n| comm | yes | base wire |\n\n## Next\n",
    "CMakeLists.txt": "trireme_module(base)\ntrireme_module(wire DEPENDS base)\n# the torch line\n"
                      "trireme_module(comm TORCH DEPENDS base wire LIBRARIES ZLIB::ZLIB)\n",
    "trireme/base/text.h": "#pragma once\n#include <string>\n",
    "trireme/base/internal/digits.h": "#pragma once\n",
    "trireme/base/text.cpp": '#include "trireme/base/text.h"\n#include "trireme/base/internal/digits.h"\n',
    "trireme/wire/frame.h": '#pragma once\n#include "trireme/base/text.h"\n',
    "trireme/comm/group.h": '#pragma once\n#include <ATen/core/Tensor.h>\n#include "trireme/wire/frame.h"\n',
    "trireme/comm/group.cpp": '#include "trireme/comm/group.h"\n#include "trireme/base/text.h"\n#include <torch/torch.h>\n',
    "trireme/all.h": '#pragma once\n#include "trireme/comm/group.h"\n',
    "cli/main.cpp": '#include "cli/command.h"\n#include "trireme/comm/group.h"\n',
}


class CheckLayout(unittest.TestCase):
    def problems(self, **changes):
        """What the check says of the right tree with changes: {file: text appended, or whole text after '='}."""
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            files = dict(RIGHT)
            for file, text in changes.get("files", {}).items():
                files[file] = text[1:] if text.startswith("=") else files.get(file, "#pragma once\n") + text
            for file, text in files.items():
                (root / file).parent.mkdir(parents=True, exist_ok=True)
                (root / file).write_text(text)
            return check_layout.check(root)

    def expect(self, words, files):
        problems = self.problems(files=files)
        self.assertTrue(any(words in problem for problem in problems), f"expected '{words}' in {problems}")

    def test_right_tree_passes(self):
        self.assertEqual(self.problems(), [])

    def test_include_against_the_table(self):
        self.expect("module base may not include wire", {"trireme/base/text.h": '#include "trireme/wire/frame.h"\n'})

    def test_arithmetic_on_ranks(self):
        for line in ("int tp = rank % 2;", "int dp = context.rank() / plan.tensor_ranks();"):
            self.expect("cli/main.cpp:3: arithmetic on a rank", {"cli/main.cpp": line + "\n"})
        self.assertEqual(self.problems(files={"cli/main.cpp": "// rank / 2 is no code\nint x = ranks / 2;\n"}), [])

    def test_name_of_a_test(self):
        right = "TEST(AllReduce, Zero3KeepsGPUMemoryOnAllRanks) {}\n\n  TEST_F(Run, DISABLED_HasOneTwoThreeFourFiveSix) {}\n"
        self.assertEqual(self.problems(files={"tests/unit/comm/group_test.cpp": "=" + right}), [])
        wrong = "TEST_P(Host,\n       AHostThatJoinsLateIsTakenIn) {}\n"
        self.expect("tests/unit/comm/group_test.cpp:2: the name Host.AHostThatJoinsLateIsTakenIn has 8 words; expected at most 7: "
                    "drop articles", {"tests/unit/comm/group_test.cpp": "=\n" + wrong})

    def test_edge_that_nothing_uses(self):
        self.expect("module comm may include wire and does not", {"trireme/comm/group.h": "=#pragma once\n"})
        self.expect("module wire may include base and does not",
                    {"trireme/wire/frame.h": '=#pragma once\n#include "trireme/wire/other.h"\n',
                     "trireme/wire/other.h": "=#pragma once\n"})

    def test_torch_below_the_line(self):
        for name in ("torch/types.h", "ATen/ATen.h", "c10/util/intrusive_ptr.h"):
            self.expect("below the torch line", {"trireme/wire/frame.h": f"#include <{name}>\n"})

    def test_torch_module_below_the_line(self):
        self.expect("below the torch line and depends on comm",
                    {"CMakeLists.txt": "=trireme_module(base)\ntrireme_module(comm TORCH DEPENDS base wire)\n"
                                       "trireme_module(wire DEPENDS base comm)\n"})

    def test_internal_header_of_another_module(self):
        self.expect("internal to module base", {"trireme/wire/frame.h": '#include "trireme/base/internal/digits.h"\n'})
        self.expect("internal to module base", {"cli/main.cpp": '#include "trireme/base/internal/digits.h"\n'})

    def test_internal_header_in_a_public_one(self):
        self.expect("not installed", {"trireme/base/text.h": '#include "trireme/base/internal/digits.h"\n'})

    def test_whole_torch_in_a_header(self):
        self.expect("sources only", {"trireme/comm/group.h": "#include <torch/torch.h>\n"})

    def test_includes_written_otherwise(self):
        for line in ('"text.h"', '"../base/text.h"', "<trireme/base/text.h>", '"base/text.h"'):
            self.expect("write ", {"trireme/wire/frame.h": f"#include {line}\n"})

    def test_umbrella_inside_a_module(self):
        self.expect("umbrella", {"trireme/comm/group.cpp": '#include "trireme/all.h"\n'})

    def test_table_and_build_differ(self):
        self.expect("module wire: docs/architecture.md says",
                    {"CMakeLists.txt": "=trireme_module(base)\ntrireme_module(wire)\n"
                                       "trireme_module(comm TORCH DEPENDS base wire)\n"})
        self.expect("module comm: docs/architecture.md says",
                    {"CMakeLists.txt": "=trireme_module(base)\ntrireme_module(wire DEPENDS base)\n"
                                       "trireme_module(comm DEPENDS base wire)\n"})

    def test_module_that_one_place_does_not_know(self):
        self.expect("module data has no row", {"trireme/data/set.h": ""})
        self.expect("module data has no trireme_module() line", {"trireme/data/set.h": ""})
        self.expect("module data has no folder", {"CMakeLists.txt": "trireme_module(data DEPENDS base)\n"})

    def test_cycles(self):
        self.expect("cycle: ", {"CMakeLists.txt": "=trireme_module(base DEPENDS wire)\ntrireme_module(wire DEPENDS base)\n"
                                                  "trireme_module(comm TORCH DEPENDS base wire)\n"})
        self.expect("include each other", {"trireme/base/text.h": '#include "trireme/base/b.h"\n',
                                           "trireme/base/b.h": '#include "trireme/base/text.h"\n'})

    def test_long_file(self):
        self.expect("501 lines", {"trireme/base/long.cpp": "=" + "int x;\n" * 501})
        self.assertEqual(self.problems(files={"trireme/base/long.cpp": "=" + "int x;\n" * 500}), [])

    def test_form_of_files(self):
        self.expect("#pragma once", {"trireme/base/guard.h": "=// words first\n#pragma once\n"})
        self.expect("ASCII", {"trireme/base/text.cpp": "// na\u00efve\n"})


if __name__ == "__main__":
    unittest.main()
