#!/bin/bash
# Become the first process of a machine of one's own: own processes, network, /tmp and /dev/shm. Then run a command.
#
#   unshare --pid --net --mount --fork --mount-proc --kill-child own_machine.sh KEPT... -- COMMAND...
#
# The folders KEPT stay reachable where they are, although a new /tmp is mounted over them.
set -e
kept=()
while [ "$1" != -- ]; do kept+=("$1"); shift; done
shift
mount -t tmpfs tmpfs /mnt
for n in "${!kept[@]}"; do
  mkdir "/mnt/$n"
  mount --bind "${kept[n]}" "/mnt/$n"
done
mount -t tmpfs -o mode=1777 tmpfs /tmp
mount -t tmpfs -o mode=1777 tmpfs /dev/shm
for n in "${!kept[@]}"; do
  (umask 077 && mkdir -p "${kept[n]}")
  mount --bind "/mnt/$n" "${kept[n]}"
done
umount -l /mnt
ip link set lo up
# No exec: as the first process, this shell reaps what others leave to it.
"$@"
exit $?
