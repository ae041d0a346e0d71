#!/usr/bin/env bash
# Creates the passwords of docker-compose.yml in ./secrets once; existing files are not overwritten.
# The folder is closed to other users. Its files are readable, because each is mounted separately into containers with other users.
# The checkout's files that containers read are made readable too, whatever the umask; ./narratives, ./stages and ./outbox are created for user 10001.
set -euo pipefail
cd "$(dirname "$0")/.."
umask 077
mkdir -p secrets
chmod 0700 secrets
for name in postgres_password prefect_db_password ledger_owner_password ledger_password ledger_release_password \
  redis_password storage_key; do
  [ -e "secrets/$name" ] || od -An -N24 -tx1 /dev/urandom | tr -d ' \n' > "secrets/$name"
done
[ -e secrets/prefect_login ] || printf 'operator:%s' "$(od -An -N24 -tx1 /dev/urandom | tr -d ' \n')" > secrets/prefect_login
[ -e secrets/api_keys ] || printf 'client %s\n' "$(od -An -N32 -tx1 /dev/urandom | tr -d ' \n')" > secrets/api_keys
[ -e secrets/signing-key.pem ] || "${BIN:-.venv/bin}/autocoder" keys new --out secrets > /dev/null
[ -e secrets/signing_key ] || cp secrets/signing-key.pem secrets/signing_key
[ -e secrets/engine/engine-key.pem ] || "${BIN:-.venv/bin}/autocoder" engine --new-certificates secrets/engine > /dev/null
chmod 0755 secrets/engine
chmod 0444 secrets/engine/*.pem secrets/*_password secrets/prefect_login secrets/signing_key secrets/storage_key secrets/api_keys
[ ! -e secrets/signing-key.pub.pem ] || chmod 0444 secrets/signing-key.pub.pem
for path in deployments/postgres deployments/Caddyfile deployments/serve.Caddyfile; do [ ! -e "$path" ] || chmod -R a+rX "$path"; done
mkdir -p narratives stages outbox
[ "$(id -u)" != 0 ] || chown 10001:10001 narratives stages outbox
echo "secrets/ is complete; keep a copy of it, and of secrets/signing-key.pem apart from it"
