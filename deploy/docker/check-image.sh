#!/bin/sh
# Builds the image twice with buildah, without a registry. Checks that both are equal, and that the command runs.
# As root, in the root of a clone, with buildah, crun and debootstrap: sh deploy/docker/check-image.sh [FOLDER]
# The base is Debian's python3 under the name in FROM: it tests the steps, but another version of Python.
set -eu
folder=${1:-$(mktemp -d)}
base=$(sed -n 's/^FROM \([^ ]*\)$/\1/p' deploy/docker/Dockerfile)
release=${base##*-}
export BUILDAH_ISOLATION=chroot SOURCE_DATE_EPOCH=315532800
store() { buildah --root "$folder/store" --runroot "$folder/run" "$@"; }

if [ ! -e "$folder/base/done" ]; then
  debootstrap --variant=minbase --include=ca-certificates,python3-dev,python3-pip,python3-venv "$release" "$folder/base"
  rm -rf "$folder"/base/usr/lib/python3*/EXTERNALLY-MANAGED "$folder"/base/var/cache/apt/archives/*.deb
  ln -s python3 "$folder/base/usr/bin/python"
  touch "$folder/base/done"
fi
container=$(store from scratch)
store add --quiet "$container" "$folder/base" / >/dev/null
store commit --quiet --rm "$container" "docker.io/library/$base" >/dev/null

for number in 1 2; do
  # The certificates of this machine: it may be behind a proxy that terminates TLS.
  store build --pull-never --no-cache --timestamp "$SOURCE_DATE_EPOCH" --volume /etc/ssl/certs:/etc/ssl/certs:ro \
    --tag "tornado-idv:check-$number" --file deploy/docker/Dockerfile . > "$folder/build-$number.log" 2>&1
  container=$(store from --pull-never "tornado-idv:check-$number")
  mounted=$(store mount "$container")
  (cd "$mounted" && find opt var/lib/tornado-idv -type f -exec sha256sum {} + | sort -k 2) > "$folder/files-$number"
  (cd "$mounted" && find opt var/lib/tornado-idv -printf '%p %m %U:%G %l\n' | sort) >> "$folder/files-$number"
  [ "$number" = 2 ] || store rm "$container" >/dev/null
done
diff "$folder/files-1" "$folder/files-2"
[ "$(store images --quiet tornado-idv:check-1)" = "$(store images --quiet tornado-idv:check-2)" ]

store run "$container" -- tornado-idv --version
store run "$container" -- python -c 'import ldap, asyncpg, redis; print(ldap.__version__)'
store rm "$container" >/dev/null
echo "The same image twice: $folder"
