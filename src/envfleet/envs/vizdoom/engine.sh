#!/bin/sh
# Starts an engine in the folder that contains the link to this script; game.py makes both.
# Ctrl-C is sent to the whole process group; Python decides what it means.
trap '' INT
cd "$(dirname "$0")" || exit 1
printf '%s\n' "$@" > arguments
program=$(cat program)
# An engine that ends inside DoomGame.init() crashes the process that called it. So one that is killed there is replaced
# by another engine: init() returns, and game.py finds the link "state" and raises. If game.py made the link first, init()
# has returned.
for _ in 1 2 3 4 5 6 7 8 9 10; do
  "$program" "$@" > log 2>&1
  status=$?
  if [ "$status" -le 128 ]; then break; fi
  ln -s killed state 2> /dev/null || [ "$(readlink state)" = killed ] || break
done
exit "$status"
