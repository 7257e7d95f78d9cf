#!/usr/bin/env bash
# Installs what the project needs: Debian packages, and libtorch from the Python package index into .deps/.
# Idempotent: a second call finds everything in place and does nothing.
#
#   tools/setup.sh [build] [test] [bench] [check] [docs] [cuda] [torch-minimum]      (default: build)
#
# Without root it prints the apt line to run and stops. TRIREME_TORCH_DIR=DIR (the folder of a torch
# package, with include/ and lib/) is used instead of the download; so is the torch that the Python
# named by TRIREME_PYTHON imports. torch-minimum fetches the oldest libtorch that is built with, beside the other.
# Downloads are checked against the hashes in tools/requirements/, Debian packages by apt.
set -euo pipefail
. "$(dirname "$0")/help.sh"
cd "$(dirname "$0")/.."
. tools/versions.sh

build_packages=(g++ make cmake ninja-build ccache python3 git
  zlib1g-dev libcli11-dev libtomlplusplus-dev nlohmann-json3-dev libxxhash-dev
  libturbojpeg0-dev libpng-dev libwebp-dev libssl-dev libcurl4-openssl-dev libhwloc-dev
  dataset-fashion-mnist)
test_packages=(libgtest-dev libgmock-dev lld openmpi-bin iproute2 procps etcd-server python3-yaml doxygen
  munge slurmctld slurmd slurm-client libucx-dev)
bench_packages=(libopenmpi-dev openmpi-bin python3-venv)
check_packages=(clang-format-14)
docs_packages=(doxygen python3 python3-pip)
fetch_packages=(python3 python3-pip ca-certificates)
torch_folder=.deps/torch-$TORCH_VERSION

die() { printf 'setup: %s\n' "$*" >&2; exit 1; }

selected_torch() {  # prints the torch folder that the build will use, or nothing
  if [ -n "${TRIREME_TORCH_DIR:-}" ]; then
    [ -f "$TRIREME_TORCH_DIR/lib/libtorch_cpu.so" ] \
      || die "TRIREME_TORCH_DIR=$TRIREME_TORCH_DIR has no lib/libtorch_cpu.so; point it at the folder of a torch package, or unset it"
    echo "$TRIREME_TORCH_DIR"
  elif [ -n "${TRIREME_PYTHON:-}" ]; then
    # Found, not imported: importing torch takes seconds and needs all of its dependencies.
    "$TRIREME_PYTHON" -c 'import importlib.util, sys
spec = importlib.util.find_spec("torch")
if spec is None: sys.exit(1)
print(spec.submodule_search_locations[0])' \
      || die "TRIREME_PYTHON=$TRIREME_PYTHON has no torch; install it there, or unset the variable"
  elif [ -f "$torch_folder/torch/lib/libtorch_cpu.so" ]; then
    echo "$PWD/$torch_folder/torch"
  fi
}

missing_packages() {  # prints those of the named packages that are not installed
  command -v dpkg-query >/dev/null \
    || die "this is not a Debian system: install the equivalents of: $* (then TRIREME_SKIP_PACKAGES=1 skips this check)"
  # One call for all: dpkg-query complains about packages that it has never heard of, and goes on.
  comm -23 <(printf '%s\n' "$@" | sort -u) \
    <({ dpkg-query -W -f '${db:Status-Status} ${Package}\n' "$@" 2>/dev/null || true; } | sed -n 's/^installed //p' | sort -u)
}

lock() {  # one setup at a time: the second waits, then finds the work done
  [ -z "$locked" ] || return 0
  locked=yes
  mkdir -p .deps
  exec 9>.deps/setup.lock
  if ! flock --nonblock 9; then
    echo "setup: waiting for another setup in this folder to finish"
    flock 9
  fi
}

install_packages() {
  local missing
  mapfile -t missing < <(missing_packages "$@")
  [ ${#missing[@]} -eq 0 ] && return
  if [ "$(id -u)" -ne 0 ]; then
    die "these packages are missing; run this line, then run the command again:
  sudo apt-get update && sudo apt-get install -y --no-install-recommends ${missing[*]}"
  fi
  lock
  mapfile -t missing < <(missing_packages "$@")
  [ ${#missing[@]} -eq 0 ] && return
  echo "setup: installing ${missing[*]}"
  export DEBIAN_FRONTEND=noninteractive
  local log=.deps/apt.log
  # An update may fail over a source that has nothing to do with us; the installation then decides.
  { apt-get update -q || true
    apt-get install -y -q --no-install-recommends -o DPkg::Lock::Timeout=300 "${missing[@]}"; } >"$log" 2>&1 9>&- \
    || { tail -n 20 "$log" >&2; die "apt-get failed; the whole log is in $log"; }
}

fetch_wheels() {  # fetch_wheels FOLDER LIST [PYTHON]: all of a list in tools/requirements/, and nothing else; for that Python
  local folder=$1 list=tools/requirements/$2.txt
  [ -f "$list" ] || die "there are no hashes in $list to check the download against; tools/pin.py writes them (tools/pin.py --help)"
  local machine; machine=$(uname -m)
  local pip=(python3 -m pip install --quiet --no-compile --only-binary=:all: --no-deps --require-hashes --requirement "$list"
    --disable-pip-version-check --root-user-action=ignore --no-warn-script-location
    --python-version "${3:-$WHEEL_PYTHON}" --implementation cp --target "$folder")
  local version
  for version in {28..17}; do pip+=(--platform "manylinux_2_${version}_$machine"); done
  pip+=(--platform "manylinux2014_$machine")
  # pip unpacks into its temporary folder and then moves: on the same disk that is a rename, and a small
  # /tmp does not matter. It is emptied first, so what a broken-off download left is gone, too.
  rm -rf "$folder"
  mkdir -p "$folder.tmp"
  TMPDIR=$PWD/$folder.tmp "${pip[@]}" 9>&- \
    || { rm -rf "$folder" "$folder.tmp"; die "the download of $list from the Python package index failed: check the network (pip's own settings apply), or set TRIREME_TORCH_DIR; a file with another hash than the list's is rejected"; }
  rm -rf "$folder.tmp"
}

fetch_torch() {  # fetch_torch VERSION: into its folder of .deps
  local folder=.deps/torch-$1 partial=.deps/partial-torch
  echo "setup: fetching libtorch $1 (about 540 MB) into $folder"
  rm -rf "$folder" "$partial" "$partial.tmp"
  fetch_wheels "$partial" "torch-$1"
  mv "$partial" "$folder"  # the name appears when all of it is there
}

install_torch() {
  lock
  [ -n "$(selected_torch)" ] || fetch_torch "$TORCH_VERSION"
}

install_clang_tidy() {
  local folder=.deps/clang-tidy-$CLANG_TIDY_VERSION partial=.deps/partial-clang-tidy
  [ ! -d "$folder" ] || return 0
  lock
  echo "setup: fetching clang-tidy $CLANG_TIDY_VERSION into $folder"
  fetch_wheels "$partial" "clang-tidy-$CLANG_TIDY_VERSION"
  mv "$partial" "$folder"
}

install_kubernetes_schemas() {  # of the package, the one file that a test reads; without a network it is skipped
  local folder=.deps/kubernetes-validate-$KUBERNETES_VALIDATE_VERSION partial=.deps/partial-kubernetes
  [ ! -d "$folder" ] || return 0
  lock
  [ ! -d "$folder" ] || return 0
  echo "setup: fetching the schemas of Kubernetes into $folder"
  if ! python3 -m pip --version >/dev/null 2>&1 || ! (fetch_wheels "$partial" "kubernetes-validate-$KUBERNETES_VALIDATE_VERSION"); then
    echo "setup: going on without them; one test is skipped" >&2
    return 0
  fi
  mkdir -p "$folder.new"
  mv "$partial/kubernetes_validate/kubernetes-json-schema/v1.27.0-local-strict/_definitions.json" "$folder.new/definitions-1.27.json"
  mv "$folder.new" "$folder"
  rm -rf "$partial"
}

install_site_generator() {  # for the Python that will run it; without a network `make docs` builds the C++ reference alone
  local folder=.deps/mkdocs-material-$MKDOCS_MATERIAL_VERSION partial=.deps/partial-site python
  [ ! -d "$folder" ] || return 0
  lock
  [ ! -d "$folder" ] || return 0
  echo "setup: fetching the generator of the site into $folder"
  python=$(python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])')
  if ! python3 -m pip --version >/dev/null 2>&1 || ! (fetch_wheels "$partial" "mkdocs-material-$MKDOCS_MATERIAL_VERSION" "$python"); then
    echo "setup: continuing without it; the pages of the site are not built" >&2
    return 0
  fi
  mv "$partial" "$folder"
}

install_minimum_torch() {
  [ ! -f ".deps/torch-$TORCH_MINIMUM_VERSION/torch/lib/libtorch_cpu.so" ] || return 0
  lock
  fetch_torch "$TORCH_MINIMUM_VERSION"
}

install_cuda_wheels() {  # everything libtorch_cuda needs at run time
  [ -e "$torch_folder/cuda-is-complete" ] && return
  lock
  [ "$(selected_torch)" = "$PWD/$torch_folder/torch" ] \
    || die "the CUDA libraries belong to the torch in $torch_folder, but another torch is selected; unset TRIREME_TORCH_DIR and TRIREME_PYTHON"
  echo "setup: fetching the CUDA libraries (about 2.5 GB) into $torch_folder"
  local partial=.deps/partial-cuda
  [ -f "$torch_folder/torch/lib/libtorch_cuda.so" ] || die "the torch in $torch_folder is a build for the CPU only"
  rm -rf "$partial" "$partial.tmp"
  fetch_wheels "$partial" "cuda-$TORCH_VERSION"
  # The set contains the two libraries that are there already: each is replaced in one step.
  cp -r --link --force "$partial/nvidia/." "$torch_folder/nvidia/"
  rm -rf "$partial"
  touch "$torch_folder/cuda-is-complete"
}

packages=() torch= cuda= minimum= tidy= schemas= site= locked=
for part in "${@:-build}"; do
  case $part in
    build) packages+=("${build_packages[@]}"); torch=yes ;;
    test)  packages+=("${test_packages[@]}") schemas=yes site=yes ;;
    bench) packages+=("${bench_packages[@]}") ;;
    check) packages+=("${check_packages[@]}" "${fetch_packages[@]}"); tidy=yes ;;
    docs)  packages+=("${docs_packages[@]}") site=yes ;;
    cuda)  torch=yes cuda=yes ;;
    torch-minimum) packages+=("${fetch_packages[@]}"); minimum=yes ;;
    *) die "unknown part '$part'; known: build test bench check docs cuda torch-minimum" ;;
  esac
done
found_torch=$(selected_torch)
if [ -n "$torch$cuda" ] && { [ -z "$found_torch" ] || [ ! -e "$torch_folder/cuda-is-complete" -a -n "$cuda" ]; }; then
  packages+=("${fetch_packages[@]}")
fi
[ -n "${TRIREME_SKIP_PACKAGES:-}" ] || [ ${#packages[@]} -eq 0 ] || install_packages "${packages[@]}"
[ -z "$torch" ] || [ -n "$found_torch" ] || install_torch
[ -z "$cuda" ] || install_cuda_wheels
[ -z "$minimum" ] || install_minimum_torch
[ -z "$tidy" ] || install_clang_tidy
[ -z "$schemas" ] || install_kubernetes_schemas
[ -z "$site" ] || install_site_generator
