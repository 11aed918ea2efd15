#!/usr/bin/env bash
# Make the Python environment for the demo and the tests, with the plugin of this checkout (pip install -e), and compile
# its operators. If the environment is complete, nothing is done.
# usage: scripts/setup.sh [--fastbpe]   VENV=DIR    where (default: .venv in the checkout; an existing one is completed)
#                                       PYTHON=EXE  Python 3.11 to 3.13 (default: python3); on 3.13 fairseq is
#                                                   compiled, by a C++ compiler and Python's headers, in 5 minutes
#                                       TORCH=SPEC  the torch that pip installs (default: torch==2.13.0)
# --fastbpe: also install fastBPE, which data_prep can use in place of subword-nmt; it needs a C++ compiler.
set -euo pipefail
case "${1:-}" in
  "" | --fastbpe) ;;
  -h | --help) sed -n '2,8s/^# \{0,1\}//p' "$0"; exit 0 ;;
  *) echo "error: unknown argument '$1'; setup.sh takes --fastbpe or nothing (see --help)" >&2; exit 2 ;;
esac
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
venv=${VENV:-$root/.venv}
python=${PYTHON:-python3}
torch=${TORCH:-torch==2.13.0}

if [ ! -x "$venv/bin/pip" ]; then # it has no pip if an earlier run was killed
  "$python" -c 'import sys; v = sys.version_info[:2]; sys.exit(
    None if (3, 11) <= v <= (3, 13) else f"error: Python 3.11 to 3.13 is needed, this is {v[0]}.{v[1]} (on 3.14 "
    "`import fairseq` fails); set PYTHON")'
  "$python" -m venv "$venv"
fi

# the installed packages depend only on these
stamp=$venv/.lightconv-setup
wanted=$( (cat "$root/pyproject.toml"; echo "$torch" "$root"; "$venv/bin/python" -V) | sha256sum)
if [ "$(cat "$stamp" 2>/dev/null)" != "$wanted" ]; then
  echo "installing into $venv (a minute or two; several with a CUDA build of torch)"
  pip=("$venv/bin/python" -m pip install --disable-pip-version-check --no-compile)
  [ -t 1 ] || pip+=(--quiet) # in a terminal pip shows what it downloads
  if ! "$venv/bin/python" -c 'import sys; sys.exit(sys.version_info >= (3, 13))'; then
    # There is no wheel of fairseq. Building it needs torch; in an isolated build, pip would download another one.
    "${pip[@]}" "$torch" "setuptools<81" wheel "cython>=3.0,<4" "numpy>=1.26"
    pip+=(--no-build-isolation)
  fi
  # torch in the same command, so that nothing else pulls another build of it first
  "${pip[@]}" "$torch" -e "$root[fairseq,recipes,sweep,export,dev]"
  echo "installed; compiling the installed Python files"
  # pip would compile on one core; like pip, this skips a file that is written for another Python
  "$venv/bin/python" -W ignore -m compileall -qq -j 0 -x /testing/_internal/ "$venv/lib" || true
  "$venv/bin/python" -P -m lightconv_plugin.info # compiles the operators, and tests them
  echo "$wanted" >"$stamp"
fi

# The package of fastBPE contains C++ that an old Cython generated and that does not compile for Python 3.11. It is
# generated again in a temporary venv, because this takes older tools than those of the environment.
if [ "${1:-}" = --fastbpe ] && ! "$venv/bin/python" -c 'import fastBPE' 2>/dev/null; then
  folder=$(mktemp -d)
  trap 'rm -rf "$folder"' EXIT
  "$venv/bin/python" -m venv "$folder/venv"
  "$folder/venv/bin/python" -m pip install --quiet "setuptools<81" wheel "cython>=3.0,<4"
  "$folder/venv/bin/python" -m pip wheel --quiet --no-build-isolation --no-cache-dir --no-deps \
    --wheel-dir "$folder/wheels" fastBPE==0.1.0
  "$venv/bin/python" -m pip install --quiet --no-deps "$folder"/wheels/*.whl
  "$venv/bin/python" -c 'from fastBPE import fastBPE'
fi
echo "environment ready: $venv (with fairseq, from any folder: --user-dir $root/lightconv_plugin)"
