#!/usr/bin/env bash
# What compressed gradients cost in accuracy: the same run with each compression, beside the uncompressed one with the
# same optimizer, over several seeds. Runs that are finished in RUNS are not run again, so it may be interrupted.
#   TEXT=FILE [RUNS=FOLDER] [SEEDS="1 2 3"] [ROWS="REGULAR EXPRESSION"] bench/compression_accuracy.sh [cnn|gpt ...]
set -euo pipefail
. "$(dirname "$0")/../tools/help.sh"
here=$(cd "$(dirname "$0")" && pwd)
source "$here/peers/needs.sh"
build=${TRIREME_BUILD:-$here/../build/release}
needs_programs trireme
seeds=${SEEDS:-1 2 3}
runs=${RUNS:-$(mktemp -d)}

# NAME|THE UNCOMPRESSED RUN IT STANDS BESIDE|SETTINGS...
compressed() { # BASE: one row for each compression that works with any optimizer
  for name in fp16 int8 qsgd sign power-sgd; do echo "$name|$1|parallel.compression=$name"; done
  echo "top-k|$1|parallel.compression=top-k parallel.compression_fraction=0.01"
}
by_ranks="train.clip_norm=0 parallel.compression_clip_norm=1"  # each rank clips what it hands in
rows_of() { "$1_rows" | grep -E "^(${ROWS:-.*})\|"; }
cnn_rows() {
  local sgd="optimizer.name=sgd optimizer.momentum=0.9 optimizer.lr=0.05 optimizer.weight_decay=0.0005"
  local adamw="optimizer.name=adamw optimizer.lr=0.001 optimizer.weight_decay=0 train.clip_norm=0"
  echo "none, sgd|-|$sgd"
  compressed "none, sgd" | sed "s/|parallel/|$sgd parallel/"
  echo "dgc|none, sgd|$sgd optimizer.lr=0.5 parallel.compression=dgc parallel.compression_fraction=0.01"
  echo "dgc, warm-up|none, sgd|$sgd optimizer.lr=0.1 parallel.compression=dgc parallel.compression_fraction=0.01 $by_ranks parallel.compression_warmup_steps=469"
  echo "none, adamw|-|$adamw"
  echo "one-bit|none, adamw|$adamw parallel.compression=one-bit parallel.compression_warmup_steps=300"
}
gpt_rows() {
  local sgd="optimizer.name=sgd optimizer.momentum=0.9 optimizer.lr=0.3 optimizer.weight_decay=0"
  echo "none, adamw|-|"
  compressed "none, adamw"
  echo "none, adamw, not clipped|-|train.clip_norm=0"
  echo "one-bit|none, adamw, not clipped|train.clip_norm=0 parallel.compression=one-bit parallel.compression_warmup_steps=250"
  echo "none, sgd|-|$sgd"
  echo "dgc|none, sgd|$sgd parallel.compression=dgc parallel.compression_fraction=0.01"
  echo "dgc, clipped by ranks|none, sgd|$sgd parallel.compression=dgc parallel.compression_fraction=0.01 $by_ranks"
  echo "dgc, warm-up|none, sgd|$sgd parallel.compression=dgc parallel.compression_fraction=0.01 $by_ranks parallel.compression_warmup_steps=400"
}
cnn_run=(fashion_mnist.toml --set train.epochs=3)
gpt_run=(gpt_char.toml --set "data.path=${TEXT:-}" --set train.max_steps=1000 --set lr.decay_steps=400 --set eval.every_steps=1000)

is_over() { grep -qs '"status": *"completed"' "$1/run/summary.json"; }
one() { # MODEL NAME SEED SETTINGS...: leaves its summary under RUNS
  local model=$1 name=$2 seed=$3 folder settings=() key
  shift 3
  folder="$runs/$model/${name//[ ,]/_}-$seed"
  is_over "$folder" && return
  for key in "$@"; do settings+=(--set "$key"); done
  local -n arguments="${model}_run"
  rm -rf "$folder" && mkdir -p "$folder"
  "$build/bin/trireme" train "$here/../examples/${arguments[0]}" "${arguments[@]:1}" -n 2 --set comm.torch_threads=1 \
    --set "run.seed=$seed" --set "run.folder=$folder" --set run.name=run --set checkpoint.every_steps=0 \
    ${settings[@]+"${settings[@]}"} >"$folder/log" 2>&1 || tail -3 "$folder/log" >&2
}

number() { # KEY FILE
  sed -n "s/.*\"$1\": *\([-0-9.e+]*\).*/\1/p" "$2" | head -1
}

for model in ${*:-cnn gpt}; do
  [ "$model" = cnn ] && key=test_accuracy || key=validation_loss
  [ "$model" = cnn ] || [ -f "${TEXT:-}" ] || { echo "compression_accuracy.sh: gpt needs a text: TEXT=FILE" >&2; exit 2; }
  for seed in $seeds; do
    while IFS='|' read -r name _ settings; do one "$model" "$name" "$seed" $settings </dev/null; done < <(rows_of "$model")
  done
  echo "| $model | ${key/_/ } with seeds $seeds | mean, against uncompressed | KB sent per step |"
  echo "| --- | --- | --- | --- |"
  declare -A means=()
  while IFS='|' read -r name base _; do
    values=() bytes=
    for seed in $seeds; do
      folder="$runs/$model/${name//[ ,]/_}-$seed"
      file="$folder/run/summary.json"
      is_over "$folder" || continue
      values+=("$(number $key "$file")") bytes=$(number sent_bytes_of_step "$file")
    done
    [ ${#values[@]} -gt 0 ] || { echo "| $name | did not end | | |"; continue; }
    means[$name]=$(printf '%s\n' "${values[@]}" | awk '{s += $1} END {print s / NR}')
    difference=
    [ "$base" = - ] || difference=$(awk -v a="${means[$name]}" -v b="${means[$base]}" 'BEGIN {printf "%+.4f", a - b}')
    printf '| %s | %s | %s | %.0f |\n' "$name" "$(printf '%.4f\n' "${values[@]}" | paste -sd, | sed 's/,/, /g')" "$difference" \
      "$(awk -v b="$bytes" 'BEGIN {print b / 1000}')"
  done < <(rows_of "$model")
  echo
done
