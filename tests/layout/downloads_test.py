#!/usr/bin/env python3
"""Downloads have exact versions and hashes in the tree, and a file with another hash is not installed."""
import hashlib
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
import zipfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
LISTS = sorted((ROOT / "tools/requirements").glob("*.txt"))
PACKAGE = re.compile(r"([a-z0-9-]+)==([0-9][0-9a-z.]*)((?: --hash=sha256:[0-9a-f]{64})+)")


def versions():
    return dict(re.findall(r"^([A-Z_]+)_VERSION=(.+)$", (ROOT / "tools/versions.sh").read_text(), re.M))


def packages(path):
    """Lines of a list, each package on one; the comment is left out."""
    joined = re.sub(r" \\\n +", " ", path.read_text())
    return [line for line in joined.splitlines() if not line.startswith("#")]


def has_pip():
    return subprocess.run([sys.executable, "-m", "pip", "--version"], capture_output=True).returncode == 0


class Lists(unittest.TestCase):
    def test_every_package_has_an_exact_version_and_hashes(self):
        self.assertGreaterEqual(len(LISTS), 6)
        for path in LISTS:
            self.assertTrue(packages(path), path)
            for line in packages(path):
                self.assertRegex(line, f"^{PACKAGE.pattern}$", path.name)

    def test_every_version_has_its_list(self):
        for name, version in versions().items():
            self.assertRegex(version, r"^[0-9][0-9.]*[0-9]$", f"{name} is a range")
            stem = "torch" if name.startswith("TORCH") else name.lower().replace("_", "-")
            self.assertIn(f"{stem}-{version}.txt", [path.name for path in LISTS])
        for stem in ("cuda", "peers"):
            self.assertIn(f"{stem}-{versions()['TORCH']}.txt", [path.name for path in LISTS])

    def test_the_cuda_libraries_are_those_that_torch_asks_for(self):
        found = list((ROOT / ".deps").glob(f"torch-{versions()['TORCH']}/torch-*.dist-info/METADATA"))
        if not found:
            self.skipTest("the torch of another folder is used here")
        asked = re.findall(r"^Requires-Dist: *((?:nvidia-|cuda-toolkit)[a-z0-9-]*)(?:\[[^]]*\])? *\(?==([0-9.]+)", found[0].read_text(), re.M)
        listed = [PACKAGE.match(line).groups()[:2] for line in packages(ROOT / f"tools/requirements/cuda-{versions()['TORCH']}.txt")]
        self.assertTrue(asked)
        for package in asked:
            self.assertIn(package, listed)


class Scripts(unittest.TestCase):
    def test_no_script_installs_without_hashes(self):
        paths = [path for folder in ("tools", "bench", ".ci") for path in sorted((ROOT / folder).rglob("*")) if path.is_file()]
        installs = 0
        for path in paths:
            if path.suffix not in (".sh", "", ".py"):
                continue
            for line in path.read_text(errors="replace").splitlines():
                if re.search(r"\bpip\"? install|-m pip install", line) and not line.strip().startswith("#"):
                    installs += 1
                    self.assertIn("--require-hashes", line, path)
                self.assertNotRegex(line, r"^\s*(curl|wget)\s", path)
        self.assertEqual(installs, 2)


@unittest.skipUnless(has_pip(), "there is no pip")
class Tampered(unittest.TestCase):
    """tools/setup.sh, with a package of the right name and version from a folder instead of the index."""

    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.folder)
        shutil.copytree(ROOT / "tools", self.folder / "tools", ignore=shutil.ignore_patterns("__pycache__"))
        self.version = versions()["KUBERNETES_VALIDATE"]
        wheels = self.folder / "wheels"
        wheels.mkdir()
        info = f"kubernetes_validate-{self.version}.dist-info"
        self.wheel = wheels / f"kubernetes_validate-{self.version}-py3-none-any.whl"
        with zipfile.ZipFile(self.wheel, "w") as archive:
            archive.writestr("kubernetes_validate/kubernetes-json-schema/v1.27.0-local-strict/_definitions.json", "{}")
            archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: kubernetes-validate\nVersion: {self.version}\n")
            archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            archive.writestr(f"{info}/RECORD", "")

    def set_up(self):
        environment = {**os.environ, "TRIREME_SKIP_PACKAGES": "1", "TRIREME_TORCH_DIR": str(self.folder / "torch"),
                       "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(self.wheel.parent)}
        library = self.folder / "torch/lib/libtorch_cpu.so"
        library.parent.mkdir(parents=True, exist_ok=True)
        library.touch()
        answer = subprocess.run(["bash", "tools/setup.sh", "test"], cwd=self.folder, env=environment, capture_output=True,
                                text=True, timeout=100)
        self.assertEqual(answer.returncode, 0, answer.stderr)
        return answer.stderr

    def definitions(self):
        return self.folder / f".deps/kubernetes-validate-{self.version}/definitions-1.27.json"

    def test_a_file_with_another_hash_is_not_installed(self):
        self.assertRegex(self.set_up(), "(?i)hash")
        self.assertFalse(self.definitions().exists())

    def test_a_file_with_the_hash_of_the_list_is(self):
        digest = hashlib.sha256(self.wheel.read_bytes()).hexdigest()
        (self.folder / f"tools/requirements/kubernetes-validate-{self.version}.txt").write_text(
            f"kubernetes-validate=={self.version} --hash=sha256:{digest}\n")
        self.set_up()
        self.assertTrue(self.definitions().exists())


if __name__ == "__main__":
    unittest.main()
