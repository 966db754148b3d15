# Sourced by the other scripts: where we are and which modules there are.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
modules() { git ls-files -- 'go.mod' '*/go.mod' | xargs -n1 dirname; }
step() { printf '\n== %s\n' "$*"; }

# tests is go test. Packages in which a test failed run once more, each by itself,
# because a machine that does other things too may starve a test; the last lines name
# them, for they are to be mended all the same. A data race, a panic and a package that
# does not build have no second chance, nor has a fourth package.
tests() {
  local log failed
  log=$(mktemp)
  if go test "$@" 2>&1 | tee "$log"; then
    rm -f "$log"
    return
  fi
  mapfile -t failed < <(awk '$1 == "FAIL" && $2 ~ /\// && $3 !~ /failed/ { print $2 }' "$log" | sort -u)
  if [ ${#failed[@]} -eq 0 ] || [ ${#failed[@]} -gt 3 ] ||
    grep -qE 'WARNING: DATA RACE|^panic: |^fatal error: |\[(build|setup) failed\]' "$log"; then
    rm -f "$log"
    return 1
  fi
  rm -f "$log"
  local flags=() arg
  for arg in "$@"; do
    case $arg in -*) flags+=("$arg") ;; esac
  done
  step "once more: ${failed[*]}"
  go test -count=1 -p=1 "${flags[@]}" "${failed[@]}"
  printf '\nUNSTABLE, passed when run again: %s\n' "${failed[*]}"
}
