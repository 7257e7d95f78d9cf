# What the tests of the installation do, step by step. Sourced with BUILD CONSUMER CMAKE GENERATOR TORCH as
# arguments; works in a folder of its own inside BUILD, where libtorch can be linked instead of copied.
set -euo pipefail
build=$1 consumer=$2 cmake=$3 generator=$4 torch=$5
work=$(mktemp -d "$build/install-test-XXXXXX")
trap 'rm -rf "$work"' EXIT
unset TRIREME_TORCH_DIR TRIREME_PYTHON LD_LIBRARY_PATH

fail() { echo "$*"; exit 1; }

# expect TEXT COMMAND...: the command succeeds and prints TEXT.
expect() {
  local words=$1 found
  shift
  found=$(cd "$work" && timeout 200 "$@" 2>&1) || fail "failed: $*"$'\n'"$found"
  grep -qF -- "$words" <<<"$found" || fail "expected '$words' of: $*"$'\n'"$found"
  echo "as expected: $*"
}

# refuse TEXT COMMAND...: the command ends with exit code 2 and says TEXT.
refuse() {
  local words=$1 found code=0
  shift
  found=$(cd "$work" && timeout 200 "$@" 2>&1) || code=$?
  [ $code -eq 2 ] || fail "expected exit code 2, found $code: $*"$'\n'"$found"
  grep -qF -- "$words" <<<"$found" || fail "expected '$words' of: $*"$'\n'"$found"
  echo "refused as expected: $*"
}

install_plain() { "$cmake" --install "$build" --prefix "$1" >"$work/install.log"; }

install_bundle() {
  install_plain "$1"
  TRIREME_BUNDLE_LINKS=1 "$cmake" --install "$build" --prefix "$1" --component bundle >>"$work/install.log"
}

check_files() {  # check_files PREFIX
  local file
  for file in bin/trireme bin/trireme-torch include/trireme/trireme.h share/trireme/examples/quick.toml \
    share/bash-completion/completions/trireme share/zsh/site-functions/_trireme \
    share/fish/vendor_completions.d/trireme.fish; do
    [ -s "$1/$file" ] || fail "not installed: $file"
  done
  local internal; internal=$(find "$1/include" -name internal)
  [ -z "$internal" ] || fail "internal headers are installed: $internal"
}

check_run_paths() {  # check_run_paths plain|bundle PREFIX
  PYTHONDONTWRITEBYTECODE=1 python3 "$(dirname "$0")/run_paths_test.py" "$1" "$2" "$torch" || fail "run paths of $2"
}

use_programs() {  # use_programs PREFIX [COMMAND that runs them...]
  local prefix=$1 example=$1/share/trireme/examples/quick.toml
  shift
  expect "completed after 64 steps" "$@" "$prefix/bin/trireme" train "$example" -n 2 --set train.epochs=1
  expect "step-00000050: ok" "$@" "$prefix/bin/trireme" checkpoint verify runs/quick
  expect "equal within the bounds" "$@" "$prefix/bin/trireme" verify "$example" -n 2 --steps 2
  expect "Training can work here" "$@" "$prefix/bin/trireme" doctor
  expect ", commit " "$@" "$prefix/bin/trireme" --version
  expect "shm" "$@" "$prefix/bin/trireme" bench allreduce -n 2 --smoke
  expect "naive" "$@" "$prefix/bin/trireme" bench pipeline-resnet50 --smoke --report pipeline.html
  expect "images/s" "$@" "$prefix/bin/trireme" bench rpc-resnet50 --smoke --report rpc.html
}

build_project() {  # build_project PREFIX [EXAMPLE...]: configured against the installed package only
  local prefix=$1 example
  shift
  rm -rf "$work/project"
  cp -r "$consumer" "$work/project"
  for example in "$@"; do cp "$consumer/../../../examples/$example".{cpp,toml} "$work/project"; done
  # Of no build type: the debugger's part would take a fifth of the time.
  "$cmake" -S "$work/project" -B "$work/project/build" -G "$generator" -DCMAKE_PREFIX_PATH="$prefix" \
    >"$work/configure.log" || { cat "$work/configure.log"; exit 1; }
  "$cmake" --build "$work/project/build"
}

use_project() {  # use_project PREFIX: over two processes, by our launcher and, where there is one, by mpirun
  # Both ranks have the right weights for both axes only if their gradients were averaged.
  local program=$work/project/build/my_program words="separate: 2 ranks, weights 2.000 -3.000"
  expect "$words" "$1/bin/trireme" launch -n 2 -- "$program"
  if command -v mpirun >/dev/null; then
    local options=(--oversubscribe)
    [ "$(id -u)" -ne 0 ] || options+=(--allow-run-as-root)
    expect "$words" mpirun "${options[@]}" -n 2 "$program"
  else
    echo "no mpirun here: only our launcher was tried"
  fi
  words="calls: factor 1.0, thrown: too far [in 'fail' on worker 'worker1']"
  expect "$words" "$1/bin/trireme" launch -n 2 -- "$work/project/build/calls"
}

use_with_torch() {  # use_with_torch PREFIX: find_package(Torch) in the same project, before Trireme and after it
  local project=$work/with_torch target=torch order
  local configure=("$cmake" -S "$project" -G "$generator" -DCMAKE_PREFIX_PATH="$1;$work/torch")
  ln -s "$torch" "$work/torch"  # another folder than the build's
  cp -r "$consumer/../with_torch" "$project"
  cp "$consumer/my_program.cpp" "$project"
  export TORCH_CUDA_ARCH_LIST=8.0  # a wheel for CUDA would ask the devices
  if ! "${configure[@]}" -B "$project/alone" -DONLY_TORCH=ON >"$work/torch.log" 2>&1; then
    echo "find_package(Torch) does not work here without Trireme: not tried. $(grep -m 1 -A 1 "CMake Error" "$work/torch.log")"
    return
  fi
  # A wheel for CUDA links only next to NVIDIA's libraries; without them its part for the CPU is linked.
  "$cmake" --build "$project/alone" >"$work/torch.log" 2>&1 || target=torch_cpu_library
  echo "target of find_package(Torch): $target"
  "${configure[@]}" -B "$project/build" -DTORCH_TARGET=$target >"$work/torch.log" 2>&1 || { cat "$work/torch.log"; exit 1; }
  "$cmake" --build "$project/build"
  for order in torch_first torch_last; do
    expect "separate: 2 ranks, weights 2.000 -3.000" "$1/bin/trireme" launch -n 2 -- "$project/build/$order/$order"
  done
  ! readelf -d "$project/build/torch_first/torch_first" | grep -F "$torch" ||
    fail "Trireme links another libtorch than the one that find_package(Torch) found before"
}

use_examples() {  # autoencoder and two_towers, with the whole command line
  # A program of somebody's own types starts itself as ranks, without trireme.
  local own=$work/project/build/autoencoder
  local settings=("$work/project/autoencoder.toml" -n 2 --set images.of=synthetic --set parallel.pipeline=2)
  expect "completed after 32 steps" "$own" train "${settings[@]}" --set train.epochs=1
  expect "on 2 ranks and on one: equal" "$own" verify "${settings[@]}"
  settings=("$work/project/two_towers.toml" -n 2 --set parallel.pipeline=2)
  own=$work/project/build/two_towers
  expect "completed after 64 steps" "$own" train "${settings[@]}" --set train.epochs=1
  expect "on 2 ranks and on one: equal" "$own" verify "${settings[@]}"
}
