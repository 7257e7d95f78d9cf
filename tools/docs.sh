#!/usr/bin/env bash
# Writes the site of the guides, with the C++ reference: build/docs/index.html
#
#   tools/docs.sh [FOLDER]          (default: build/docs)
#
# Pages are MkDocs Material's, in the order of docs/index.md; the contracts of the public headers are Doxygen's, in api/.
# Fails, with the site written, on a public name that no comment holds for and on any warning, and at once on a link to what is not
# there: docs/adr/0056-a-comment-holds-for-what-follows-it.md, docs/adr/0096-the-site-is-made-by-two-programs.md. Where the generator of
# the pages could not be fetched, only the C++ reference is written, which is said.
set -euo pipefail
. "$(dirname "$0")/help.sh"
cd "$(dirname "$0")/.."
. tools/versions.sh
tools/setup.sh docs
root=$PWD version=$(<VERSION) folder=$(realpath -m "${1:-build/docs}") work=$(realpath -m "${1:-build/docs}").work
generator=$root/.deps/mkdocs-material-$MKDOCS_MATERIAL_VERSION
failed=

rm -rf "$work"
python3 tools/docs/site_pages.py --check
python3 tools/docs/input.py "$work/input"
(cd "$work/input" && doxygen - 2>&1 <<END
@INCLUDE = $root/tools/docs/Doxyfile
PROJECT_NUMBER = $version
OUTPUT_DIRECTORY = $work
HTML_EXTRA_STYLESHEET = $root/tools/docs/api.css
GENERATE_TAGFILE = $work/tags.xml
EXAMPLE_PATH = $root/examples
END
) >"$work/log" || failed=yes
sed "s|^$work/input/||" "$work/log" >&2
python3 tools/docs/undocumented.py "$work/xml" >&2 || failed=yes
if [ -d "$work/html" ] && [ -d "$generator" ]; then  # not where Doxygen broke off
  python3 tools/docs/site_pages.py "$work/site" "$work/tags.xml"
  NO_MKDOCS_2_WARNING=1 PYTHONPATH=$generator python3 -m mkdocs build --quiet --strict --config-file "$work/site/mkdocs.yml" --site-dir "$work/pages" >"$work/log" 2>&1 || failed=yes
  cat "$work/log" >&2
  rm -rf "$folder"
  mv "$work/pages" "$folder"
  mv "$work/html" "$folder/api"
  echo "docs: $folder/index.html"
elif [ -d "$work/html" ]; then
  rm -rf "$folder"
  mkdir -p "$folder"
  mv "$work/html" "$folder/api"
  echo "docs: $folder/api/index.html; the pages are left out: $generator is not there"
fi
rm -rf "$work"
[ -z "$failed" ] || { echo "docs: the lines above have to be fixed" >&2; exit 1; }
