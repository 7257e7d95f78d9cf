# Sourced by the benchmarks: sets PEER_PYTHON to a Python with the same torch as ours, fetching one into build/
# where none is named.
if [ -z "${PEER_PYTHON:-}" ]; then
  source "$here/../tools/versions.sh"
  PEER_PYTHON=$here/../build/peers-venv/bin/python
  if [ ! -x "$PEER_PYTHON" ]; then
    python3 -m venv "$here/../build/peers-venv"
    "$here/../build/peers-venv/bin/pip" install -q "torch==$TORCH_VERSION" numpy
  fi
fi
