#!/usr/bin/env bash
# Installs the real parts that the tests use: browsers and Node.js to drive
# them, iproute2 for network namespaces, Redis, and the relays that the
# benchmarks compare with. Needs root and Debian's apt.
. "$(dirname "$0")/lib.sh"
packages=()
need() { command -v "$1" >/dev/null || packages+=("$2"); }
need chromium chromium
need firefox-esr firefox-esr
need ip iproute2
need node nodejs
need npm npm
need redis-server redis-server
need nginx nginx
[ -e /usr/share/nginx/modules-available/mod-stream.conf ] || packages+=(libnginx-mod-stream)
need turnserver coturn
need nft nftables
need gcc gcc
if [ ${#packages[@]} -gt 0 ]; then
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${packages[@]}"
fi
# The flow store's tests also run with Valkey where Debian has it: from trixie on, in
# bookworm in backports. Its service may not start beside Redis's, which is no matter.
if ! command -v valkey-server >/dev/null && apt-cache show valkey-server >/dev/null 2>&1; then
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends valkey-server ||
    echo "valkey-server was not installed; its tests are skipped" >&2
fi
