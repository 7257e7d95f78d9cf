#!/usr/bin/env python3
"""Names every public name that no comment holds for, from the XML that Doxygen wrote: undocumented.py XML_FOLDER

What needs none is said in docs/adr/0056-what-a-public-name-has-to-say.md.
"""
import pathlib
import re
import sys
import xml.etree.ElementTree as ElementTree

NAMED = ("class", "struct", "union", "concept")


def says_something(element):
    return any("".join(element.find(part).itertext()).strip() for part in ("briefdescription", "detaileddescription"))


def is_self_evident(member):
    """Of the members of a documented type."""
    name, arguments = member.findtext("name"), member.findtext("argsstring") or ""
    if member.get("kind") != "function":
        return member.get("kind") in ("variable", "enum")
    return (name[0].isupper() or name == "fields" or name.startswith(("~", "operator")) or member.find("reimplements") is not None
            or arguments.endswith(("=default", "=delete")) or " override" in arguments
            or re.match(r"\(\) ?(const|noexcept)", arguments) is not None)


def says_all_in_its_members(compound):
    """An aggregate each of whose members says what it is."""
    members = list(compound.iter("memberdef"))
    return bool(members) and all(member.get("kind") == "variable" and says_something(member) for member in members)


def undocumented(folder):
    """(file, line, what) of each."""
    found = set()

    def note(element, kind, name):
        place = element.find("location")
        found.add((place.get("file"), int(place.get("line")), f"{kind} {name}"))

    for file in sorted(folder.glob("*.xml")):
        if not re.match(r"(class|struct|union|namespace|concept)", file.name):
            continue
        for compound in ElementTree.parse(file).getroot():
            name, kind = compound.findtext("compoundname"), compound.get("kind")
            if compound.get("prot", "public") != "public" or not name.startswith("trireme") or re.search(r"@|<|\binternal\b", name):
                continue
            if kind in NAMED and not says_something(compound) and not says_all_in_its_members(compound):
                note(compound, kind, name)
            members = list(compound.iter("memberdef"))
            said = {member.findtext("name") for member in members if says_something(member)}
            for member in members:
                if member.get("prot") != "public" or member.get("kind") == "friend" or member.findtext("name") in said:
                    continue
                if kind == "namespace" or not is_self_evident(member):
                    note(member, member.get("kind"), f"{name}::{member.findtext('name')}")
    return sorted(found)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--help"]:
        sys.exit(print(__doc__))
    found = undocumented(pathlib.Path(sys.argv[1]))
    for file, line, what in found:
        print(f"{file}:{line}: {what} has no comment")
    sys.exit(1 if found else 0)
