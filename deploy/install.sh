#!/usr/bin/env bash
# Installs Ludus and Ray from a source tree into a folder of their own. Images, machine images and
# cloud-init use it.
#
#   install.sh [PREFIX]    default: /opt/ludus
#
#   DEPLOY_TORCH   cpu (default), cuda, or the address of an index of torch's wheels
#   DEPLOY_ATARI   1 installs ale-py, the Atari emulator, which is under the GPL-2.0
set -euo pipefail

source="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
prefix="${1:-/opt/ludus}"
pip=("$prefix/bin/python" -m pip --disable-pip-version-check --no-cache-dir)

locks=(-r "$source/requirements.lock" -r "$source/deploy/requirements-ray.lock")
if [ "${DEPLOY_ATARI:-0}" = 1 ]; then locks+=(-r "$source/requirements-atari.lock"); fi

# Everything by its hash but torch, whose build depends on the machine.
index=()
case "${DEPLOY_TORCH:-cpu}" in
  cpu) index=(--index-url https://download.pytorch.org/whl/cpu) ;;
  cuda) ;;
  *) index=(--index-url "$DEPLOY_TORCH") ;;
esac
torch="$(sed -n 's/^  "\(torch>=[^"]*\)",$/\1/p' "$source/pyproject.toml")"
[ -n "$torch" ] || { echo "install.sh: pyproject.toml names no range of torch" >&2; exit 1; }

python3 -m venv "$prefix"
"${pip[@]}" install --quiet --require-hashes "${locks[@]}"
"${pip[@]}" install --quiet "${index[@]}" "$torch"
"${pip[@]}" install --quiet --no-deps --no-build-isolation "$source"
install -m 755 "$source/deploy/role.sh" "$prefix/bin/ludus-role"
"${pip[@]}" check
