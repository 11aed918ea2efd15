#!/usr/bin/env bash
# Build the files of a release from the last commit into dist/: the sources, a wheel for any machine, which compiles at
# first use, and a wheel with the compiled library. auditwheel then reports the platform of the compiled wheel; it is an
# error if the wheel's name has another one.
# usage: scripts/release.sh    in the environment that scripts/setup.sh makes (VENV=DIR: in another one); it needs g++
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
case "${1:-}" in
  "") ;;
  -h | --help) sed -n '2,5s/^# \{0,1\}//p' "$0"; exit 0 ;;
  *) echo "error: unknown argument '$1'; release.sh takes none (see --help)" >&2; exit 2 ;;
esac
python=${VENV:-$root/.venv}/bin/python
if [ -e "$root/dist" ]; then
  echo "error: $root/dist exists already; move it away" >&2
  exit 1
fi
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
git -C "$root" archive HEAD | tar -x -C "$folder"
cd "$folder"
"$python" -m build --no-isolation                                      # dist/*.tar.gz, dist/*-any.whl
"$python" -m build --no-isolation --wheel -C--build-option=--compiled  # dist/*-manylinux_*.whl
wheel=$(ls dist/*-manylinux_*.whl)
report=$("$python" -m auditwheel show "$wheel" | tr '\n' ' ')
echo "$report" | fold -s -w 120
tag=$(sed -E 's/.*-(manylinux_.*)\.whl/\1/' <<<"$wheel")
if ! grep -q "constrains the platform tag to \"$tag\"" <<<"$report"; then
  echo "error: $wheel has the platform $tag in its name, but auditwheel reports another one; do not publish it" >&2
  exit 1
fi
mv dist "$root/dist"
ls -l "$root/dist"
if grep -q '^Repository = .*/OWNER/' "$root/pyproject.toml"; then
  echo "before you publish these files, fill in the repository's address in pyproject.toml and CITATION.cff" >&2
fi
