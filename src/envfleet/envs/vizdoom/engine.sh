#!/bin/sh
# Starts an engine in the folder that a link to this script is in; game.py makes both.
# Ctrl-C goes to the whole group of processes; what it means is for Python to say.
trap '' INT
cd "$(dirname "$0")" || exit 1
printf '%s\n' "$@" > arguments
exec "$(cat program)" "$@" > log 2>&1
