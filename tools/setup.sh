#!/usr/bin/env bash
# Installs what the project needs: Debian packages, and libtorch from PyPI into .deps/.
# Idempotent: a second call finds everything in place and does nothing.
#
#   tools/setup.sh [build] [test] [bench] [cuda]      (default: build)
#
# Without root it prints the apt line to run and stops. TRIREME_TORCH_DIR=DIR (the folder of a torch
# package, with include/ and lib/) is used instead of the download; so is the torch that the Python
# named by TRIREME_PYTHON imports.
set -euo pipefail
cd "$(dirname "$0")/.."
. tools/versions.sh

build_packages=(g++ make cmake ninja-build ccache python3 python3-pip ca-certificates git
  zlib1g-dev libcli11-dev libtomlplusplus-dev nlohmann-json3-dev libxxhash-dev
  dataset-fashion-mnist)
test_packages=(libgtest-dev libgmock-dev libbenchmark-dev openmpi-bin iproute2 procps)
bench_packages=(libopenmpi-dev openmpi-bin libbenchmark-dev python3-venv)

die() { printf 'setup: %s\n' "$*" >&2; exit 1; }

install_packages() {
  local missing=() package
  for package in "$@"; do
    dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing+=("$package")
  done
  [ ${#missing[@]} -eq 0 ] && return
  command -v apt-get >/dev/null || die "missing packages: ${missing[*]}. This is not a Debian system: install their equivalents, then run this again."
  if [ "$(id -u)" -ne 0 ]; then
    die "these packages are missing; run this line, then run the command again:
  sudo apt-get update && sudo apt-get install -y --no-install-recommends ${missing[*]}"
  fi
  echo "setup: installing ${missing[*]}"
  export DEBIAN_FRONTEND=noninteractive
  local log=.deps/apt.log
  mkdir -p .deps
  { apt-get update -q && apt-get install -y -q --no-install-recommends "${missing[@]}"; } >"$log" 2>&1 \
    || { tail -n 20 "$log" >&2; die "apt-get failed; the whole log is in $log"; }
}

torch_home() {  # prints the torch folder that the build will use, or nothing
  if [ -n "${TRIREME_TORCH_DIR:-}" ]; then
    [ -f "$TRIREME_TORCH_DIR/lib/libtorch_cpu.so" ] \
      || die "TRIREME_TORCH_DIR=$TRIREME_TORCH_DIR has no lib/libtorch_cpu.so; point it at the folder of a torch package, or unset it"
    echo "$TRIREME_TORCH_DIR"
  elif [ -n "${TRIREME_PYTHON:-}" ]; then
    "$TRIREME_PYTHON" -c 'import os, torch; print(os.path.dirname(torch.__file__))' \
      || die "TRIREME_PYTHON=$TRIREME_PYTHON cannot import torch; install it there, or unset the variable"
  elif [ -f ".deps/torch-$TORCH_VERSION/.complete" ]; then
    echo "$PWD/.deps/torch-$TORCH_VERSION/torch"
  fi
}

fetch_wheels() {  # fetch_wheels FOLDER REQUIREMENT...
  local folder=$1; shift
  local machine; machine=$(uname -m)
  local pip=(python3 -m pip install --quiet --no-deps --no-compile --only-binary=:all:
    --disable-pip-version-check --root-user-action=ignore --no-warn-script-location --upgrade
    --python-version "$WHEEL_PYTHON" --implementation cp --target "$folder")
  local version
  for version in 28 27 25 17; do pip+=(--platform "manylinux_2_${version}_$machine"); done
  pip+=(--platform "manylinux2014_$machine")
  "${pip[@]}" "$@" || die "the download from the Python package index failed; check the network (pip's own settings apply), or set TRIREME_TORCH_DIR"
}

install_torch() {
  [ -n "$(torch_home)" ] && return
  local folder=.deps/torch-$TORCH_VERSION
  echo "setup: fetching libtorch $TORCH_VERSION (about 540 MB) into $folder"
  rm -rf "$folder"
  mkdir -p "$folder"
  fetch_wheels "$folder" "torch==$TORCH_VERSION" "nvidia-cuda-runtime==$CUDA_RUNTIME_VERSION" "nvidia-cuda-cupti==$CUDA_CUPTI_VERSION"
  touch "$folder/.complete"
}

install_cuda_wheels() {  # everything libtorch_cuda needs at run time
  local folder=.deps/torch-$TORCH_VERSION
  [ -f "$folder/.cuda-complete" ] && return
  [ -f "$folder/.complete" ] || die "the CUDA libraries belong to the torch in $folder, but another torch is selected; unset TRIREME_TORCH_DIR and TRIREME_PYTHON"
  echo "setup: fetching the CUDA libraries (about 2.5 GB) into $folder"
  local wanted
  mapfile -t wanted < <(sed -n 's/^Requires-Dist: \(\(nvidia\|cuda\)[^;]*\).*/\1/p' "$folder"/torch-*.dist-info/METADATA | tr -d ' ()' | sed 's/\[.*\]//')
  fetch_wheels "$folder" "${wanted[@]}"
  touch "$folder/.cuda-complete"
}

for part in "${@:-build}"; do
  case $part in
    build) install_packages "${build_packages[@]}"; install_torch ;;
    test)  install_packages "${test_packages[@]}" ;;
    bench) install_packages "${bench_packages[@]}" ;;
    cuda)  install_cuda_wheels ;;
    *) die "unknown part '$part'; known: build test bench cuda" ;;
  esac
done
