#!/usr/bin/env bash
# Serves deploy/demo/chain.yaml and the instance behind it until Ctrl-C.
set -euo pipefail
cd "$(dirname "$0")"
bin=${1:?usage: chain.sh FOLDER-OF-THE-COMMANDS}
rm -f members.db
"$bin/python" -c 'import sqlite3, sys
with sqlite3.connect("members.db") as db: db.executescript(sys.stdin.read())' < members.sql
"$bin/tornado-idv" serve --config origin.yaml > /dev/null &
origin=$!
trap 'kill "$origin" 2> /dev/null || true' EXIT
echo "@mallory is in the SQLite table, @alice behind the other instance."
"$bin/tornado-idv" serve --config chain.yaml
