#!/usr/bin/env bash
# Trains on Fashion-MNIST over two processes and shows what came out: from a fresh clone, everything that is
# missing is set up and built first.
#
#   tools/demo.sh [RANKS]        (default: 2)
set -euo pipefail
. "$(dirname "$0")/help.sh"
cd "$(dirname "$0")/.."
ranks=${1:-2}
tools/build.sh release trireme trireme-torch
build/release/bin/trireme train examples/fashion_mnist.toml -n "$ranks"
echo "runs/fashion_mnist/summary.json:"
cat runs/fashion_mnist/summary.json
