#!/bin/sh
# Starts an engine in the folder that contains the link to this script; game.py makes both.
# Ctrl-C is sent to the whole process group; Python decides what it means.
trap '' INT
cd "$(dirname "$0")" || exit 1
printf '%s\n' "$@" > arguments
exec "$(cat program)" "$@" > log 2>&1
