#!/usr/bin/env bash
# All-reduce: our shared memory beside gloo and, where mpicc is, Open MPI. Arguments go to bench_allreduce.
#   bench/allreduce.sh [-n RANKS] [--passes P] [--smoke]
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
build=${TRIREME_BUILD:-$here/../build/release}
if command -v mpicc >/dev/null && command -v mpirun >/dev/null; then
  peer=$build/bin/mpi_allreduce
  mpicc -O3 -o "$peer" "$here/peers/mpi_allreduce.c"
  exec "$build/bin/bench_allreduce" --mpi "$peer" "$@"
fi
echo "mpicc or mpirun is missing (tools/setup.sh bench installs them): no comparison with Open MPI" >&2
exec "$build/bin/bench_allreduce" "$@"
