#!/usr/bin/env bash
# Two databases under four roles, when the volume is new. Prefect's role has nothing to do in the ledger's database.
set -euo pipefail
psql -v ON_ERROR_STOP=1 --username postgres \
  -v prefect="$(cat /run/secrets/prefect_db_password)" \
  -v owner="$(cat /run/secrets/ledger_owner_password)" \
  -v app="$(cat /run/secrets/ledger_password)" \
  -v release="$(cat /run/secrets/ledger_release_password)" <<'SQL'
CREATE ROLE prefect LOGIN PASSWORD :'prefect';
CREATE ROLE ledger_owner LOGIN PASSWORD :'owner';
CREATE ROLE autocoder LOGIN PASSWORD :'app';
CREATE ROLE autocoder_release LOGIN PASSWORD :'release';
CREATE DATABASE prefect OWNER prefect;
CREATE DATABASE ledger OWNER ledger_owner;
REVOKE CONNECT ON DATABASE prefect FROM PUBLIC;
REVOKE CONNECT ON DATABASE ledger FROM PUBLIC;
GRANT CONNECT ON DATABASE ledger TO autocoder, autocoder_release;
SQL
