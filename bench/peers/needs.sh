# Sourced by the benchmarks: what they need is checked before anything is measured.

# needs_programs NAME...: those that the build makes and this benchmark runs.
needs_programs() {
  local missing=()
  for name in "$@"; do [ -x "$build/bin/$name" ] || missing+=("$name"); done
  [ ${#missing[@]} -eq 0 ] && return
  echo "missing in $build/bin: ${missing[*]}; build them first: tools/build.sh release ${missing[*]}" >&2
  exit 2
}

# mpi_missing_because: why nothing can be compiled for and run with Open MPI here; nothing where it can.
mpi_missing_because() {
  local tool
  for tool in mpicc mpirun; do
    command -v "$tool" >/dev/null || { echo "there is no $tool"; return; }
  done
  # Debian brings mpicc with openmpi-bin, its compiler and mpi.h with others.
  local said
  said=$(mpicc -fsyntax-only -x c - 2>&1 <<<'#include <mpi.h>') || echo "mpicc cannot compile: ${said%%$'\n'*}"
}

# needs_peer_python: PEER_PYTHON is a Python with torch; without one in the environment, that of build/peers-venv, which
# is made with the version of torch that ours has.
needs_peer_python() {
  local venv=$here/../build/peers-venv
  if [ -z "${PEER_PYTHON:-}" ]; then
    source "$here/../tools/versions.sh"
    PEER_PYTHON=$venv/bin/python
    if ! "$PEER_PYTHON" -c 'import torch, numpy' 2>/dev/null; then
      { python3 -m venv --clear "$venv" && "$venv/bin/pip" install -q --only-binary=:all: --require-hashes -r "$here/../tools/requirements/peers-$TORCH_VERSION.txt"; } >&2 || {
        echo "cannot make a Python with torch $TORCH_VERSION in $venv (package python3-venv, a network);" \
          "name one that has it: PEER_PYTHON=/path/to/python $0" >&2
        exit 2
      }
    fi
  fi
  "$PEER_PYTHON" -c 'import torch, numpy' 2>/dev/null || {
    echo "PEER_PYTHON=$PEER_PYTHON cannot import torch and numpy, and the comparison is with them" >&2
    exit 2
  }
}
