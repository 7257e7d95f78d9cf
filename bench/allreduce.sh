#!/usr/bin/env bash
# All-reduce: our shared memory beside gloo and, where programs for it can be compiled, Open MPI. Arguments go to
# bench_allreduce.
#   bench/allreduce.sh [-n RANKS] [--passes P] [--smoke]
set -euo pipefail
. "$(dirname "$0")/../tools/help.sh"
here=$(cd "$(dirname "$0")" && pwd)
source "$here/peers/needs.sh"
build=${TRIREME_BUILD:-$here/../build/release}
needs_programs bench_allreduce
because=$(mpi_missing_because)
if [ -z "$because" ]; then
  peer=$build/bin/mpi_allreduce
  mpicc -O3 -o "$peer" "$here/peers/mpi_allreduce.c"
  exec "$build/bin/bench_allreduce" --mpi "$peer" "$@"
fi
echo "no comparison with Open MPI: $because (tools/setup.sh bench installs it)" >&2
exec "$build/bin/bench_allreduce" "$@"
