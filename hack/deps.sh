#!/bin/sh
# Installs the Debian packages that a part of the project needs, and nothing that is there already.
# Usage: hack/deps.sh GROUP...   with GROUP one of: build box image guest interop generate peers bench
# A missing package is installed without asking; what cannot be installed is an error that names it.
set -eu

packages() {
	case "$1" in
	box) echo containerd runc containernetworking-plugins iproute2 iptables nftables conntrack e2fsprogs xfsprogs util-linux socat ebtables ;;
	build) echo gcc libc6-dev ;;
	image) echo mmdebstrap debian-archive-keyring ;;
	guest) echo mmdebstrap debian-archive-keyring e2fsprogs qemu-utils xz-utils ;;
	generate) echo protobuf-compiler libprotobuf-dev ;; # the second has the imports of .proto files
	host) echo qemu-utils qemu-system-common libnbd-bin e2fsprogs ;; # qemu-system-common has qemu-storage-daemon
	interop) echo qemu-utils qemu-system-x86 nbdkit libnbd-bin e2fsprogs xfsprogs btrfs-progs curl python3 ;;
	bench) echo fio qemu-utils xfsprogs util-linux ;;
	peers) echo restic borgbackup qemu-utils qemu-system-common ;; # the same
	*) echo "deps.sh: unknown group '$1' (build, box, image, guest, interop, generate, peers, bench)" >&2; exit 2 ;;
	esac
}

[ $# -gt 0 ] || { echo "usage: hack/deps.sh GROUP..." >&2; exit 2; }
missing=
for group in "$@"; do
	for p in $(packages "$group"); do
		dpkg-query -W -f='${Status}' "$p" 2>/dev/null | grep -q 'ok installed' || missing="$missing $p"
	done
done
[ -n "$missing" ] || exit 0
[ "$(id -u)" = 0 ] || { echo "deps.sh: run as root, or install:$missing" >&2; exit 1; }

# A package must not start a daemon of its own: the box runs its own copies.
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
	printf '#!/bin/sh\nexit 101\n' >"$policy"
	chmod 755 "$policy"
	trap 'rm -f "$policy"' EXIT
fi
echo "installing:$missing" >&2
apt-get update -qq
# The lock wait covers two installs that run side by side.
DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends -o DPkg::Lock::Timeout=600 $missing >&2
