#!/usr/bin/env bash
# Hosts on one machine, for `ray up` with provider local: hosts.sh up [N] | down | sh NAME CMD... |
# cut NAME | heal NAME | status
#
# A host is a set of namespaces (net, pid, mount, uts, ipc) with an sshd as pid 1 and a home, a
# /tmp/ray and a /dev/shm of its own; the rest of the file system is common, as a network drive
# would be. "op" (10.77.0.1) is the operator's laptop, h0, h1, ... (10.77.0.10 up) the machines. No
# packet leaves this machine. Needs root, openssh-server, iproute2 and procps.
#
# HOSTS_LAB: folder for keys, homes and logs. HOSTS_KEEP: colon-separated folders that all hosts keep
# seeing, also below root's home (an interpreter, a checkout). HOSTS_PATH: folders in front of PATH
# in `sh`.
set -euo pipefail

lab="${HOSTS_LAB:?set HOSTS_LAB to a folder for keys, homes and logs}"
net=10.77.0
home_of_root="$(getent passwd root | cut -d: -f6)"
tag="${HOSTS_TAG:-rs}" # prefix of the network namespaces

in_net() { ip netns exec "$tag-$1" "${@:2}"; }

address_of() {
  if [[ "$1" == op ]]; then echo "$net.1"; else echo "$net.$((10 + ${1#h}))"; fi
}

make_network() {
  local name="$1" address
  address="$(address_of "$name")"
  ip netns add "$tag-$name"
  in_net "$name" ip link set lo up
  if [[ "$name" == op ]]; then
    in_net op ip link add bridge0 type bridge
    in_net op ip addr add "$address/24" dev bridge0
    in_net op ip link set bridge0 up
    in_net op ip route add default dev bridge0
    return
  fi
  ip link add "$tag-$name-v" type veth peer name eth0 netns "$tag-$name"
  ip link set "$tag-$name-v" netns "$tag-op"
  in_net op ip link set "$tag-$name-v" master bridge0 up
  in_net "$name" ip addr add "$address/24" dev eth0
  plug_in "$name"
}

# The route leads nowhere; Ray looks at it to find its own address.
plug_in() {
  in_net "$1" ip link set eth0 up
  in_net "$1" ip route replace default via "$net.1"
}

start_host() {
  local name="$1" home="$lab/$1/root" keep
  mkdir -p "$home/.ssh"
  chmod 700 "$home" "$home/.ssh"
  cp "$lab/key.pub" "$home/.ssh/authorized_keys"
  printf '127.0.0.1 localhost\n%s %s\n' "$(address_of "$name")" "$name" >"$lab/$name/hosts"
  cat >"$lab/$name/sshd_config" <<END
ListenAddress $(address_of "$name")
HostKey $lab/hostkey
PidFile none
AuthorizedKeysFile .ssh/authorized_keys
PasswordAuthentication no
UsePAM no
PermitRootLogin prohibit-password
MaxStartups 100
MaxSessions 100
StrictModes no
END
  local mounts="mount --make-rprivate /; mount -t proc proc /proc"
  IFS=: read -ra kept <<<"${HOSTS_KEEP:-}"
  for keep in ${kept[@]+"${kept[@]}"}; do
    [[ "$keep" == "$home_of_root"/* ]] || continue
    mkdir -p "$home${keep#"$home_of_root"}"
    mounts+="; mount --bind '$keep' '$home${keep#"$home_of_root"}'"
  done
  mounts+="; mount --rbind '$home' '$home_of_root'; mkdir -p /tmp/ray /run/sshd"
  mounts+="; mount -t tmpfs tmpfs /tmp/ray; mount -t tmpfs -o size=2g tmpfs /dev/shm"
  mounts+="; mount --bind '$lab/$name/hosts' /etc/hosts; hostname '$name'"
  # Nothing of this shell's environment may be seen on the "remote" machine.
  env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    ip netns exec "$tag-$name" unshare --pid --fork --kill-child --mount --uts --ipc -- \
    /bin/bash -c "set -e; $mounts; exec /usr/sbin/sshd -D -e -f '$lab/$name/sshd_config'" \
    >"$lab/$name/log" 2>&1 &
  echo $! >"$lab/$name/pid"
}

# Process id, as seen from here, of a host's pid 1.
first_process() {
  local parent child
  parent="$(<"$lab/$1/pid")"
  child="$(pgrep -P "$parent" | head -n 1)"
  if [[ "$(<"/proc/$child/comm")" == unshare ]]; then child="$(pgrep -P "$child" | head -n 1)"; fi
  echo "$child"
}

wait_for_ssh() {
  local tries
  for ((tries = 0; tries < 100; tries++)); do
    in_net op ssh -i "$lab/key" -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null \
      -o LogLevel=ERROR -o ConnectTimeout=1 "root@$(address_of "$1")" true 2>/dev/null && return
    sleep 0.1
  done
  echo "hosts: no ssh to $1; see $lab/$1/log" >&2
  return 1
}

names() { for pid in "$lab"/*/pid; do [[ -f "$pid" ]] && basename "$(dirname "$pid")"; done; true; }

# Take down what a run that was killed has left: its names would be taken.
clear_away() {
  local name
  for name in $(ip netns list | awk -v tag="$tag-" 'index($1, tag) == 1 {print $1}'); do
    ip netns pids "$name" | xargs -r kill -9 || true
    ip netns del "$name"
  done
}

up() {
  local count="$1" i
  clear_away
  mkdir -p "$lab"
  chmod 700 "$lab"
  for key in key hostkey; do
    [[ -f "$lab/$key" ]] || ssh-keygen -q -t ed25519 -N '' -f "$lab/$key"
  done
  make_network op
  start_host op
  for ((i = 0; i < count; i++)); do
    make_network "h$i"
    start_host "h$i"
  done
  for ((i = 0; i < count; i++)); do wait_for_ssh "h$i"; done
}

# The kernel ends every process of a pid namespace together with its first one.
down() {
  local name
  for name in $(names); do kill -9 "$(<"$lab/$name/pid")" 2>/dev/null || true; done
  sleep 0.5
  clear_away
  rm -f "$lab"/*/pid
}

command="${1:-}"
shift || true
case "$command" in
  up) up "${1:-3}" ;;
  down) down ;;
  sh)
    name="$1"
    shift
    nsenter -t "$(first_process "$name")" -a -- env -i HOME="$home_of_root" USER=root LANG=C.UTF-8 \
      PATH="${HOSTS_PATH:+$HOSTS_PATH:}/usr/local/bin:/usr/bin:/usr/sbin:/bin:/sbin" "$@"
    ;;
  cut) in_net "$1" ip link set eth0 down ;;
  heal) plug_in "$1" ;;
  status)
    for name in $(names); do echo "$name $(address_of "$name") $(first_process "$name")"; done
    ;;
  *)
    echo "usage: hosts.sh up [N] | down | sh NAME CMD... | cut NAME | heal NAME | status" >&2
    exit 2
    ;;
esac
