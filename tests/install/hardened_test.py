#!/usr/bin/env python3
"""hardened_test.py BUILD

Programs and libraries of the build folder are position independent, have their tables of functions read-only before
the first instruction of the program runs, and no stack that can be executed. The programs that are installed use
checked copies and stack guards. All objects of the project's libraries have marked branch targets, where the compiler
knows them.
"""
import re
import sys

from elf import dynamic, folder, programs_of, readelf

# Symbols that only some GPU machines have are looked up at the first call (cmake/TriremeCuda.cmake).
LAZY = ("libtrireme_cuda.so",)
GUARDED = ("trireme", "trireme-torch")
LEAST_OBJECTS = 100


def faults_of(path):
    faults = []
    if "DYN (" not in readelf(path, "-h"):
        faults.append("is not position independent")
    segments = readelf(path, "-l")
    if "GNU_RELRO" not in segments:
        faults.append("has no segment that becomes read-only (-z relro)")
    stack = re.search(r"GNU_STACK .*? ([RWE ]{3}) 0x", segments)
    if not stack or "E" in stack[1]:
        faults.append("has a stack that can be executed")
    now = any("NOW" in flags for flags in dynamic(path, "FLAGS") + dynamic(path, "FLAGS_1"))
    if not now and path.name not in LAZY:
        faults.append("looks functions up at the first call, from a table that stays writable (no -z now)")
    return faults


def guard_faults_of(path):
    symbols = set(re.findall(r" UND (\w+)", readelf(path, "--dyn-syms")))
    faults = [] if "__stack_chk_fail" in symbols else ["has no stack guards (-fstack-protector-strong)"]
    checked = {symbol for symbol in symbols if re.fullmatch(r"__\w+_chk", symbol)}
    return faults if checked else faults + ["has no checked copies (_FORTIFY_SOURCE)"]


def branch_faults_of(archive):
    """Objects of a static library without marks of branch targets and of return addresses."""
    faults, objects = [], 0
    for part in readelf(archive, "-n").split("\nFile: ")[1:]:
        objects += 1
        if not re.search(r"x86 feature: IBT, SHSTK", part):
            faults.append(f"{part.splitlines()[0]}: has no marked branch targets (-fcf-protection)")
    return faults, objects


def main():
    root = folder(sys.argv[1])
    programs = programs_of(root, "bin", "lib")
    faults = [f"{path}: {fault}" for path in programs for fault in faults_of(path)]
    guarded = [path for path in programs if path.name in GUARDED]
    faults += [f"{path}: {fault}" for path in guarded for fault in guard_faults_of(path)]
    if len(guarded) < len(GUARDED):
        faults.append(f"{root}: trireme and trireme-torch are not there; build them first")
    objects = 0
    if guarded and "X86-64" in readelf(guarded[0], "-h"):
        for archive in sorted((root / "lib").glob("libtrireme*.a")):
            more, read = branch_faults_of(archive)
            faults, objects = faults + more, objects + read
        if objects < LEAST_OBJECTS:
            faults.append(f"{root}: expected {LEAST_OBJECTS} objects of libraries at least, found {objects}")
    print("\n".join(faults) or f"{len(programs)} programs and {objects} objects of libraries are hardened")
    return 1 if faults else 0


sys.exit(main())
