#!/usr/bin/env python3
"""Prints those of the named sources that a build folder has a compile command for; without names all that it compiles,
batches of sources among them.

    tools/compiled_sources.py BUILD_FOLDER [SOURCE...]
"""
import json
import pathlib
import sys


def main():
    if sys.argv[1:2] == ["--help"]:
        return print(__doc__)
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    commands = json.loads((pathlib.Path(sys.argv[1]) / "compile_commands.json").read_text())
    compiled = {pathlib.Path(command["file"]).resolve() for command in commands}
    for source in sys.argv[2:] or sorted(map(str, compiled)):
        if pathlib.Path(source).resolve() in compiled:
            print(source)


if __name__ == "__main__":
    main()
