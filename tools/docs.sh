#!/usr/bin/env bash
# Writes the site of the headers' contracts and the guides: build/docs/index.html
#
#   tools/docs.sh [FOLDER]          (default: build/docs)
#
# Fails, with the site written, on a public name that no comment holds for and on any warning of Doxygen's, and at
# once on a link to what is not there: docs/adr/0056-a-comment-holds-for-what-follows-it.md.
set -euo pipefail
. "$(dirname "$0")/help.sh"
cd "$(dirname "$0")/.."
tools/setup.sh docs
root=$PWD version=$(<VERSION) folder=$(realpath -m "${1:-build/docs}") work=$(realpath -m "${1:-build/docs}").work
failed=

rm -rf "$work"
python3 tools/docs/input.py "$work/input"
(cd "$work/input" && doxygen - 2>&1 <<END
@INCLUDE = $root/tools/docs/Doxyfile
PROJECT_NUMBER = $version
OUTPUT_DIRECTORY = $work
HTML_EXTRA_STYLESHEET = $root/tools/docs/site.css
IMAGE_PATH = $root/docs/figures
EXAMPLE_PATH = $root/examples
END
) >"$work/log" || failed=yes
sed "s|^$work/input/||" "$work/log" >&2
python3 tools/docs/undocumented.py "$work/xml" >&2 || failed=yes
if [ -d "$work/html" ]; then  # not where Doxygen broke off
  rm -rf "$folder"
  mv "$work/html" "$folder"
  echo "docs: $folder/index.html"
fi
rm -rf "$work"
[ -z "$failed" ] || { echo "docs: the lines above have to be mended" >&2; exit 1; }
