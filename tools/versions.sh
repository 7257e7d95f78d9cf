# The versions that the project is built and checked with. Sourced by the tools, read by CMake. What is downloaded for
# them, with hashes, is listed in requirements/, one list for each version; pin.py writes a list.
TORCH_VERSION=2.15.0
TORCH_MINIMUM_VERSION=2.11.0
# Python tag of the wheels that are unpacked; only their C++ part is used, no Python runs them.
WHEEL_PYTHON=3.12
# From 22 on it leaves out what stands in headers of others, and reads a source with libtorch in a quarter of the time.
CLANG_TIDY_VERSION=23.1.4
# Of it tests read the schemas of Kubernetes alone.
KUBERNETES_VALIDATE_VERSION=1.37.0
# Of `make docs`: the generator of the site, with its dependencies.
MKDOCS_MATERIAL_VERSION=9.8.1
