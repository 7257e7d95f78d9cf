#!/usr/bin/env bash
# Batches per second beside torch.utils.data.DataLoader, over the same files with the same transforms; the systems
# alternate pass by pass. Prints a table of medians, spreads and ratios.
#   [PEER_PYTHON=python with torch, numpy and Pillow] [PASSES=5] [TEXT=a text file] bench/loader.sh [DATA...]
# DATA: fashion_mnist text image_folder (default: all three). Without TEXT a text is made up.
set -euo pipefail
. "$(dirname "$0")/../tools/help.sh"
here=$(cd "$(dirname "$0")" && pwd)
source "$here/peers/needs.sh"
build=${TRIREME_BUILD:-$here/../build/release}
needs_programs bench_loader
needs_peer_python
names=("$@")
[ ${#names[@]} -gt 0 ] || names=(fashion_mnist text image_folder)

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
peer=("$PEER_PYTHON" "$here/peers/loader.py")
text=${TEXT:-$work/text}
[ -f "$text" ] || head -c 800000 /dev/urandom | base64 >"$text"
seconds=${SECONDS_EACH:-3}
for name in "${names[@]}"; do
  path=
  if [ "$name" = text ]; then path=$text; fi
  if [ "$name" = image_folder ]; then
    "$PEER_PYTHON" -c 'import PIL' || { echo "PEER_PYTHON=$PEER_PYTHON cannot import PIL; install Pillow there" >&2; exit 2; }
    path=$work/images
    "${peer[@]}" --make-images "$path"
  fi
  options=(--data "$name" --seconds "$seconds" --block 256 ${path:+--path "$path"})
  for _ in $(seq "${PASSES:-5}"); do
    for workers in 0 1 2; do "$build/bin/bench_loader" "${options[@]}" --workers "$workers"; done
    for workers in 0 1 2; do "${peer[@]}" "${options[@]}" --workers "$workers"; done
    if [ "$name" = image_folder ]; then
      for workers in 1 2; do "$build/bin/bench_loader" "${options[@]}" --workers "$workers" --cache-samples-mib 1024; done
      "$build/bin/bench_loader" "${options[@]}" --decoder-alone
    fi
  done
done | tee "$work/lines"
"${peer[@]}" --summary "$work/lines"
