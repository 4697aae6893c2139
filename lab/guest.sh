# What the games of this folder share: Linux in a QEMU guest (kernel-peer), joined to urxe by a tap in
# a network namespace, and a folder for both, in which files tell each side how far the other is.
#
# Sourced, by a script that sets `image` (choose_linux does) and `work`, and calls in this order:
# make_image, delete_leftovers, make_network, start_guest. `guest_preamble` is the start of what runs in
# the guest. clean_up is for the trap at the end. All of it as root.

lab=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=${URXE_LAB_CACHE:-${HOME:-/root}/.cache/urxe-lab}
# The Debian release that has each Linux.
declare -A suites=([6.1]=bookworm [6.12]=trixie)
ns=urxe-lab-$$
linux_ip=10.77.0.1
urxe_ip=10.77.0.2
# Our indices of the addresses: 0 is the link-local address, as in Linux.
declare -A urxe_gid=([4]=1 [6]=2)
cell_limit=300 # seconds, for emulation is slow
boot_limit=300

fail() {
  echo "${0##*/}: $*" >&2
  exit 1
}

# Deletes a namespace of ours, with what we started in it: the guest, and urxe.
delete_namespace() {
  local id
  for id in $(ip netns pids "$1" 2>/dev/null); do kill -KILL "$id" 2>/dev/null || true; done
  ip netns delete "$1" 2>/dev/null || true
}

# What runs that were killed have left.
delete_leftovers() {
  local name
  for name in $(ip netns list | awk '/^urxe-lab-[0-9]+/ { print $1 }'); do
    [ -e "/proc/${name##*-}" ] || delete_namespace "$name"
  done
}

clean_up() {
  local status=$?
  delete_namespace "$ns"
  if [ "$status" = 0 ]; then rm -rf "$work"; else echo "see $work" >&2; fi
}

# Which Linux, by its version; and that this user may.
choose_linux() { # VERSION
  local suite=${suites[$1]:-}
  [ -n "$suite" ] || fail "there is no Linux $1 here, but ${!suites[*]}"
  image=$cache/$suite
  [ "$(id -u)" = 0 ] || fail "only root can do this: it makes a network namespace and a tap"
}

make_image() {
  [ -e "$image/initrd.gz" ] && return
  echo "building the guest's image in $image"
  rm -rf "$image" "$image.new"
  mkdir -p "$image.new"
  "$lab/kernel-peer" build "${image##*/}" "$image.new" >"$image.new/log" 2>&1 ||
    fail "the image was not built; see $image.new/log and $image.new/debootstrap.log"
  mv "$image.new" "$image"
}

make_network() {
  if [ ! -c /dev/net/tun ]; then # a container without it
    mkdir -p /dev/net
    mknod /dev/net/tun c 10 200
  fi
  ip netns add "$ns"
  inside ip link set lo up
  inside ip tuntap add dev tap0 mode tap
  inside sh -c 'echo 0 >/proc/sys/net/ipv6/conf/tap0/accept_dad'
  inside ip address add "$urxe_ip/24" dev tap0
  inside ip address add fd00:77::2/64 dev tap0 nodad
  inside ip link set tap0 up
}

inside() {
  ip netns exec "$ns" "$@"
}

# Waits for one of two files of the shared folder, as long as the guest runs.
wait_for() { # SECONDS FILE [FILE]
  local end=$((SECONDS + $1)) first=$share/$2 second=$share/${3:-$2}
  until [ -e "$first" ] || [ -e "$second" ]; do
    [ -e /proc/$guest ] && [ $SECONDS -lt $end ] || return 1
    sleep 0.1
  done
}

# Boots Linux, which reads the table line by line as its script says.
start_guest() { # TABLE-COMMAND SCRIPT-COMMAND
  share=$work/share
  mkdir "$share"
  "$1" >"$share/table"
  "$2" >"$work/guest.sh"
  inside env PCAP="$work/wire.pcap" LIMIT=7200 "$lab/kernel-peer" run "$image" "$share" \
    "$work/guest.sh" tap,ifname=tap0,script=no,downscript=no,vnet_hdr=off &
  guest=$!
  wait_for $boot_limit up || fail "Linux did not come up; see share/console and share/log"
}

# What the guest does first: the network and the device rxe0; and then gid4 and gid6 are the indices of
# its addresses, wait_for waits for a file, run for a program of which the other side may be told.
guest_preamble() {
  cat <<GUEST
ip addr add $linux_ip/24 dev eth0
echo 0 >/proc/sys/net/ipv6/conf/eth0/accept_dad
ip addr add fd00:77::1/64 dev eth0 nodad
ip link set eth0 up
sleep 1
rdma link add rxe0 type rxe netdev eth0 || exit 1
cell_limit=$cell_limit
urxe_ip=$urxe_ip
GUEST
  cat <<'GUEST'
# The index of an address in the table of GIDs, where it is written in full.
gid_index() {
  grep -l "$1" /sys/class/infiniband/rxe0/ports/1/gids/* 2>/dev/null | head -1 | sed 's#.*/##'
}
for i in $(seq 50); do
  gid4=$(gid_index 0000:0000:0000:0000:0000:ffff:0a4d:0001)
  gid6=$(gid_index fd00:0077:0000:0000:0000:0000:0000:0001)
  [ -n "$gid4" ] && [ -n "$gid6" ] && break
  sleep 0.1
done
wait_for() { # FILE
  local end=$((SECONDS + cell_limit))
  until [ -e "$1" ]; do
    [ $SECONDS -lt $end ] || return 1
    sleep 0.1
  done
}
run() { # NUMBER PROGRAM ARGUMENTS...: its output, and then its status, in the shared folder
  local number=$1 status=0 job; shift
  timeout -s KILL "$cell_limit" stdbuf -oL "$@" >"/share/$number.linux" 2>&1 &
  job=$!
  while kill -0 $job 2>/dev/null; do
    [ ! -e "/share/$number.stop" ] || kill $job
    sleep 0.1
  done
  wait $job || status=$?
  echo "$status" >"/share/$number.tmp" && mv "/share/$number.tmp" "/share/$number.linux-status"
}
serve() { # NUMBER PROGRAM ARGUMENTS...: run, of a server, which the other side is told of
  run "$@" &
  until [ -n "$(ss -ltnH 'sport = :18515')" ] || [ -e "/share/$1.linux-status" ]; do
    sleep 0.1
  done
  touch "/share/$1.ready"
  wait $!
}
GUEST
}

# Waits for the end of our server; if Linux's end comes first, not much longer.
wait_server() { # ID NUMBER
  local end=$((SECONDS + cell_limit))
  while [ -e "/proc/$1" ]; do
    if [ -e "$share/$2.linux-status" ] && [ $end -gt $((SECONDS + 20)) ]; then
      end=$((SECONDS + 20))
    fi
    [ $SECONDS -lt $end ] || kill "$1" 2>/dev/null || true
    sleep 0.1
  done
  wait "$1"
}

# Starts our server, tells Linux of it, and waits for its end.
serve_linux() { # NUMBER COMMAND...
  local number=$1 server end; shift
  "$@" &
  server=$!
  end=$((SECONDS + 20))
  until [ -n "$(inside ss -ltnH 'sport = :18515')" ] || [ ! -e /proc/$server ]; do
    [ $SECONDS -lt $end ] || break
    sleep 0.1
  done
  touch "$share/$number.ready"
  wait_server $server "$number"
}

# Waits for Linux's end of a cell, lets it go on to the next, and prints its status. An end whose other
# end has failed may wait for ever.
end_cell() { # NUMBER STATUS-OF-OURS
  [ "$2" = 0 ] || touch "$share/$1.stop"
  wait_for $cell_limit "$1.linux-status" || true
  cat "$share/$1.linux-status" 2>/dev/null || echo none
  touch "$share/$1.next"
}

check_wire() { # URXE
  local summary status=0
  "$1" dump "$work/wire.pcap" >"$work/wire.txt" || status=$?
  summary=$(tail -1 "$work/wire.txt")
  echo "on the wire: $summary"
  [ "$status" = 0 ]
}
