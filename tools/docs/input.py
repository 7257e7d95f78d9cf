#!/usr/bin/env python3
"""Writes what Doxygen reads into a folder: input.py FOLDER

Public headers (headers.py), README, guides, decisions and measurements as pages (pages.py), and, as Doxygen's own
text, indexes of the pages, what modules are (the table of docs/architecture.md), and the examples.
"""
import pathlib
import re
import shutil
import sys

import headers
import pages

ROOT = pathlib.Path(__file__).resolve().parents[2]
MAIN = "README.md"


def files(*patterns):
    """Paths within the checkout, in order."""
    return sorted(str(path.relative_to(ROOT)) for pattern in patterns for path in ROOT.glob(pattern))


def in_order_of(main, paths):
    """In the order of the main page's last table; then those that it does not name."""
    return sorted(paths, key=lambda path: (main.rfind(f"({path})") % (len(main) + 1), path))


def index(name, title, text, paths):
    return f"# {title} {{#{name}}}\n\n{text}\n\n" + "".join(f"- @subpage {pages.page_name(path)}\n" for path in paths)


def modules(architecture):
    rows = re.findall(r"^\| `trireme/(\w+)/` \| (.*?) \|", architecture, re.M)
    return "".join(f"/** @namespace trireme{'' if name == 'base' else '::' + name}\n{headers.escape(what)} */\n" for name, what in rows)


def examples():
    for file in files("examples/*.cpp"):
        opening = re.match(r"(?://.*\n)+", (ROOT / file).read_text())[0]
        said = "\n".join(headers.texts_of(opening.rstrip().split("\n")))
        yield f"/** @example {pathlib.Path(file).name}\n{said}\n*/\n"


def main(folder):
    # As cmake --install chooses.
    public = [file for file in files("trireme/**/*.h") if "/internal/" not in file]
    markdown = [file for file in files("*.md", "docs/*.md", "docs/adr/*.md", "bench/results/*.md") if "/0000-" not in file]
    site = pages.Site(ROOT, {file: (ROOT / file).read_text() for file in markdown}, public)
    written = {file: headers.as_doxygen_reads_it(pathlib.Path(file), (ROOT / file).read_text()) for file in public}
    for file in markdown:
        written[f"pages/{pages.page_name(file)}.md"] = site.page(file, is_main=file == MAIN)
    of = {part: in_order_of(site.pages[MAIN], [file for file in markdown if file.startswith(part) and file.count("/") == part.count("/")])
          for part in ("docs/", "docs/adr/", "bench/results/")}
    written["pages/0_guides.md"] = index("guides", "Guides", "What each part does, costs and promises, and how it is used.", of["docs/"])
    written["pages/1_decisions.md"] = index("decisions", "Decisions", "Why things are as they are, one page each.", of["docs/adr/"])
    written["pages/2_measurements.md"] = index("measurements", "Measurements", "Question, command, machine, median and spread.", of["bench/results/"])
    written["pages/site.dox"] = modules(site.pages["docs/architecture.md"]) + "".join(examples())
    if site.problems:
        sys.exit("\n".join(site.problems))
    shutil.rmtree(folder, ignore_errors=True)
    for file, text in written.items():
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_text(text)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--help"]:
        sys.exit(print(__doc__))
    main(pathlib.Path(sys.argv[1]).resolve())
