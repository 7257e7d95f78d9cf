"""Imported first by the programs here, before torch, which may not be there: --help prints the text that they begin with."""
import ast
import pathlib
import sys

if sys.argv[1:2] == ["--help"]:
    print(ast.get_docstring(ast.parse(pathlib.Path(sys.argv[0]).read_text())))
    sys.exit(0)
