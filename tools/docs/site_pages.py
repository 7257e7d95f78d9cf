#!/usr/bin/env python3
"""Writes what MkDocs reads.

    site_pages.py --check            the links of all pages alone
    site_pages.py FOLDER TAGS        pages into FOLDER/pages, the configuration into FOLDER/mkdocs.yml; TAGS is the tag file of Doxygen, whose
                               pages the site has in api/

README, guides, decisions, measurements, and a page for each example and recipe that one of them links to. The navigation is that of
docs/index.md: its sections, and in each the pages of its table.
"""
import json
import pathlib
import re
import shutil
import sys
import xml.etree.ElementTree

import input
import pages

ROOT = pathlib.Path(__file__).resolve().parents[2]
INDEX = "docs/index.md"
SEARCHED_LAST = "---\nsearch:\n  boost: 0.3\n---\n"  # guides come before decisions and measurements
LANGUAGES = {".cpp": "cpp", ".toml": "toml", ".yaml": "yaml", ".slurm": "bash"}


def reference_of(tags):
    """The page of each public header."""
    found = {}
    for each in xml.etree.ElementTree.parse(tags).getroot().iter("compound"):
        if each.get("kind") == "file":
            found[each.findtext("path", "") + each.findtext("name")] = "api/" + each.findtext("filename").removesuffix(".html") + ".html"
    return found


def shown(file):
    """A file as a page."""
    language = LANGUAGES.get(pathlib.PurePath(file).suffix, "")
    return f"# {file}\n\n```{language}\n{(ROOT / file).read_text().rstrip()}\n```\n"


def folder_of(markdown, folder):
    """The pages of one folder as entries: its README first."""
    of = [file for file in markdown if file.rpartition("/")[0] == folder]
    return sorted(of, key=lambda file: (not file.endswith("README.md"), file))


def navigation(texts):
    """Sections of the index, the pages that each names for the first time, and the folders that belong to them."""
    entry = lambda file: {pages.title(texts[file]) or file: file}
    sections, named = [{"Home": "README.md"}, {"All pages": INDEX}], {"README.md", INDEX}
    for section in re.split(r"^## ", texts[INDEX], flags=re.M)[1:]:
        name, _, body = section.partition("\n")
        entries = []
        for target in re.findall(r"\]\(([^()#\s]+\.md)\)", body):
            file = str((ROOT / "docs" / target).resolve().relative_to(ROOT))
            if file in texts and file not in named:
                named.add(file)
                entries.append(entry(file))
        if name == "Reference":
            entries.append({"C++ reference": "api/index.html"})
            entries.append({"Measurements": [entry(file) for file in folder_of(texts, "bench/results")]})
            named |= set(folder_of(texts, "bench/results"))
        if name == "Contributing":
            entries.append({"Decisions": [entry(file) for file in folder_of(texts, "docs/adr")]})
            named |= set(folder_of(texts, "docs/adr"))
        sections.append({name: entries})
    # An entry of Reference that is a page of a folder stands in the folder alone.
    for section in sections:
        for name, entries in section.items():
            if isinstance(entries, list):
                section[name] = [each for each in entries if next(iter(each.values())) != "bench/results/README.md"]
    return sections, sorted(set(texts) - named)


def main(folder=None, tags=None):
    markdown = [file for file in input.files("*.md", "docs/*.md", "docs/adr/*.md", "bench/results/*.md") if "/0000-" not in file]
    texts = {file: (ROOT / file).read_text() for file in markdown}
    site = pages.Site(ROOT, texts, reference_of(tags) if tags else {})
    written = {file: site.page(file) for file in markdown}
    nav, unnamed = navigation(texts)
    site.problems += [f"{file}: no row of {INDEX} leads to it" for file in unnamed]
    if site.problems:
        sys.exit("\n".join(site.problems))
    if not folder:
        return
    for file in sorted(site.shown):
        written[f"{file}.md"] = shown(file)
    shutil.rmtree(folder, ignore_errors=True)
    for file, text in written.items():
        (folder / "pages" / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / "pages" / file).write_text(SEARCHED_LAST * file.startswith(("docs/adr/", "bench/results/")) + text)
    shutil.copytree(ROOT / "docs/figures", folder / "pages/docs/figures")
    for file in ("site.css", "iframe-worker.js"):
        shutil.copy(ROOT / "tools/docs" / file, folder / "pages" / file)
    (folder / "mkdocs.yml").write_text(f"INHERIT: {ROOT}/tools/docs/mkdocs.yml\ndocs_dir: pages\nnav: {json.dumps(nav)}\n")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--help"]:
        sys.exit(print(__doc__))
    main(*(map(pathlib.Path, sys.argv[1:3]) if sys.argv[1] != "--check" else ()))
