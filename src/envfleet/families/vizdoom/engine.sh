#!/bin/sh
# Starts an engine in the folder that contains the link to this script; game.py makes both.
# Ctrl-C is sent to the whole process group; Python decides what it means.
trap '' INT
cd "$(dirname "$0")" || exit 1
printf '%s\n' "$@" > arguments
program=$(cat program)
shared_memory=ViZDoomSM$(sed -n '/viz_instance_id/{n;p;}' arguments)

# An engine that ends before its first message crashes the process that called DoomGame.init(). So one that is killed
# there is replaced by another engine, and game.py finds the link "state" and raises. After the first message, init() maps
# the shared memory and survives the end of the engine. It must not be replaced then: the queues cannot be used again,
# because their condition variables still count the engine that was killed.
has_first_message() {
  [ -e "/dev/shm/$shared_memory" ] || return 1
  for _ in 1 2 3 4 5 6 7 8 9 10; do
    if grep -q "$shared_memory" "/proc/$PPID/maps"; then return 0; fi
    sleep 0.5
  done
  return 1
}

while true; do
  "$program" "$@" > log 2>&1
  status=$?
  # A signal. An engine that gives up exits with 255.
  [ "$status" -gt 128 ] && [ "$status" -le 192 ] || break
  ln -s killed state 2> /dev/null || [ "$(readlink state)" = killed ] || break # it had started
  has_first_message && break
  sleep 0.1
done
exit "$status"
