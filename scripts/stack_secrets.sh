#!/usr/bin/env bash
# Makes the passwords of docker-compose.yml in ./secrets, once; nothing that is there is overwritten.
set -euo pipefail
cd "$(dirname "$0")/.."
umask 077
mkdir -p secrets
for name in postgres_password prefect_db_password ledger_owner_password ledger_password redis_password; do
  [ -e "secrets/$name" ] || od -An -N24 -tx1 /dev/urandom | tr -d ' \n' > "secrets/$name"
done
[ -e secrets/prefect_login ] || printf 'operator:%s' "$(od -An -N24 -tx1 /dev/urandom | tr -d ' \n')" > secrets/prefect_login
[ -e secrets/signing-key.pem ] || "${BIN:-.venv/bin}/autocoder" keys new --out secrets > /dev/null
echo "secrets/ is complete; keep a copy of it, and of secrets/signing-key.pem apart from it"
