#!/bin/sh
# Writes the secrets of replicas.yaml, and the SQL for its roles and database, into ./secrets.
# Only their owner can read them. The containers of the service run as the user of this script; if it
# runs as root, as the user of the image. ./data is for output files of commands.
set -eu
umask 077
if [ -e .env ]; then
  echo ".env exists already: move it away, run this again, and append its lines to the new one" >&2
  exit 1
fi
admin=$(openssl rand -hex 16)
service=$(openssl rand -hex 16)
mkdir secrets data
cat > secrets/database.sql <<END
CREATE ROLE idv_admin LOGIN PASSWORD '$admin';
CREATE ROLE idv_service LOGIN PASSWORD '$service';
CREATE DATABASE idv OWNER idv_admin;
\connect idv
CREATE SCHEMA idv_keys AUTHORIZATION idv_admin;
GRANT USAGE ON SCHEMA idv_keys TO idv_service;
ALTER DEFAULT PRIVILEGES FOR ROLE idv_admin GRANT SELECT ON TABLES TO idv_service;
END
echo "postgresql://idv_admin:$admin@postgres:5432/idv" > secrets/admin.dsn
echo "postgresql://idv_service:$service@postgres:5432/idv" > secrets/service.dsn
openssl rand -hex 16 > secrets/postgres.password
openssl rand -hex 32 > secrets/shared_cache.secret
user=$(id -u):$(id -g)
if [ "$(id -u)" = 0 ]; then
  user=65532:65532
  chown -R "$user" secrets data
fi
echo "IDV_USER=$user" > .env
