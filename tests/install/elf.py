"""ELF files of a folder, read with readelf."""
import os
import pathlib
import subprocess


def is_elf(path):
    if path.is_symlink() or not path.is_file() or not os.access(path, os.R_OK):
        return False
    with path.open("rb") as file:
        return file.read(4) == b"\x7fELF"


def programs_of(root, *folders):
    """Programs and shared libraries, at any depth, of those folders of `root`; of all when none is named."""
    found = [path for folder in (folders or ("",)) for path in sorted((root / folder).rglob("*")) if is_elf(path)]
    return [path for path in found if path.suffix != ".o"]


def readelf(path, *options):
    words = subprocess.run(["readelf", "-W", *options, str(path)], capture_output=True, text=True, check=True,
                           env={**os.environ, "LC_ALL": "C"})
    return words.stdout


def dynamic(path, tag):
    """Values of the entries of the dynamic section with that tag, without their brackets."""
    values = []
    for line in readelf(path, "-d").splitlines():
        fields = line.split(None, 2)
        if len(fields) == 3 and fields[1] == f"({tag})":
            _, bracket, rest = fields[2].partition("[")
            values.append(rest.rstrip().removesuffix("]") if bracket else fields[2])
    return values


def run_path(path):
    """Entries of the run path, as the loader separates them; None where there is no run path."""
    values = dynamic(path, "RPATH") + dynamic(path, "RUNPATH")
    return [entry for value in values for entry in value.split(":")] if values else None


def folder(text):
    return pathlib.Path(text).resolve()
