#!/usr/bin/env python3
"""Writes what Doxygen reads into a folder: input.py FOLDER

Public headers (headers.py) and, as Doxygen's own text, a first page, what modules are (the table of docs/architecture.md), and the
examples.
"""
import pathlib
import re
import shutil
import sys

import headers

ROOT = pathlib.Path(__file__).resolve().parents[2]
FIRST = """/** @mainpage C++ reference
The contracts of all public headers. The guides are on [the site](../index.html).

Namespaces are the modules; `trireme/trireme.h` has what a program with its own training loop needs.
*/
"""


def files(*patterns):
    """Paths within the checkout, in order."""
    return sorted(str(path.relative_to(ROOT)) for pattern in patterns for path in ROOT.glob(pattern))


def public_headers():
    """As cmake --install chooses."""
    return [file for file in files("trireme/**/*.h") if "/internal/" not in file]


def modules(architecture):
    rows = re.findall(r"^\| `trireme/(\w+)/` \| (.*?) \|", architecture, re.M)
    return "".join(f"/** @namespace trireme{'' if name == 'base' else '::' + name}\n{headers.escape(what)} */\n" for name, what in rows)


def examples():
    for file in files("examples/*.cpp"):
        opening = re.match(r"(?://.*\n)+", (ROOT / file).read_text())[0]
        said = "\n".join(headers.texts_of(opening.rstrip().split("\n")))
        yield f"/** @example {pathlib.Path(file).name}\n{said}\n*/\n"


def main(folder):
    written = {file: headers.as_doxygen_reads_it(pathlib.Path(file), (ROOT / file).read_text()) for file in public_headers()}
    written["pages/site.dox"] = FIRST + modules((ROOT / "docs/architecture.md").read_text()) + "".join(examples())
    shutil.rmtree(folder, ignore_errors=True)
    for file, text in written.items():
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_text(text)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--help"]:
        sys.exit(print(__doc__))
    main(pathlib.Path(sys.argv[1]).resolve())
