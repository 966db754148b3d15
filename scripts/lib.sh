# Sourced by the other scripts: where we are and which modules there are.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
modules() { git ls-files -- 'go.mod' '*/go.mod' | xargs -n1 dirname; }
step() { printf '\n== %s\n' "$*"; }
