#!/usr/bin/env bash
# A place on this machine where Ray touches nothing else: isolate.sh CMD...
#
# CMD gets process ids, mounts, ipc and a network (loopback only) of its own, and a private /tmp/ray
# and /dev/shm. The rest of the file system is common. When CMD ends, or this script is killed, every
# process in there dies. Needs root, util-linux and iproute2.
set -euo pipefail

export PATH="$PATH:/usr/sbin:/sbin"
exec unshare --pid --fork --kill-child --mount-proc --mount --net --ipc -- bash -c '
  set -e
  ip link set lo up
  mkdir -p /tmp/ray
  mount -t tmpfs tmpfs /tmp/ray
  mount -t tmpfs -o size=2g tmpfs /dev/shm
  exec "$@"' isolate "$@"
