#!/bin/sh
# state.sh FILE EXCEPT PATH...
# Writes name, mode, time and content of everything below the paths to FILE; where FILE stands
# already, shows how they differ from it instead, with status 1. EXCEPT: a pattern of names to leave
# out.
set -eu
file=$1 except=$2
shift 2
ls -d "$@" >/dev/null
{
    find "$@" -not -type d -not -name "$except" -not -path '*/__pycache__/*' \
        -printf '%p %y %m %T@ %l\n'
    find "$@" -type f -not -name "$except" -not -path '*/__pycache__/*' -exec sha256sum {} +
} | LC_ALL=C sort >"$file.now"
if [ -e "$file" ]; then
    diff "$file" "$file.now"
else
    mv "$file.now" "$file"
fi
