#!/usr/bin/env bash
# Breaks running trainings at random and says how they ended: soak.sh [--minutes N] [--seed S] ...; --help says all.
set -euo pipefail
exec python3 "$(dirname "$0")/soak.py" "$@"
