#!/usr/bin/env bash
# What a container is: server | services | migrate | deploy | metrics | worker POOL QUEUE…
# Passwords are read from /run/secrets, as far as this container was given them, and are in no image and no argument.
set -euo pipefail
secret() { cat "/run/secrets/$1"; }
has() { [ -r "/run/secrets/$1" ]; }

if has prefect_db_password; then
  export PREFECT_API_DATABASE_CONNECTION_URL="postgresql+asyncpg://prefect:$(secret prefect_db_password)@postgres:5432/prefect"
fi
if has redis_password; then
  export PREFECT_REDIS_MESSAGING_URL="redis://:$(secret redis_password)@redis:6379/0"
  export PREFECT_SERVER_DOCKET_URL="redis://:$(secret redis_password)@redis:6379/1"
fi
if has ledger_password; then
  export AUTOCODER_LEDGER_URL="postgresql+psycopg://autocoder:$(secret ledger_password)@postgres:5432/ledger"
fi

case "${1:-}" in
  server)
    export PREFECT_SERVER_API_AUTH_STRING="$(secret prefect_login)"
    exec prefect server start --no-services --host 0.0.0.0 --port 4200 ;;
  services)
    export PREFECT_SERVER_API_AUTH_STRING="$(secret prefect_login)"
    exec python -m flows.services ;;
  migrate)
    prefect server database upgrade -y
    AUTOCODER_LEDGER_URL="postgresql+psycopg://ledger_owner:$(secret ledger_owner_password)@postgres:5432/ledger" \
      autocoder ledger migrate --app-role autocoder ;;
  deploy)
    export PREFECT_API_AUTH_STRING="$(secret prefect_login)"
    exec autocoder deploy ;;
  metrics)
    export PREFECT_API_AUTH_STRING="$(secret prefect_login)"
    exec autocoder metrics --serve 0.0.0.0:9464 ;;
  worker)
    export PREFECT_API_AUTH_STRING="$(secret prefect_login)"
    pool=$2
    shift 2
    queues=()
    for queue in "$@"; do queues+=(--work-queue "$queue"); done
    exec prefect worker start --pool "$pool" "${queues[@]}" --type process --limit 1 --name "$pool-$(hostname)" ;;
  *)
    echo "entrypoint: server | services | migrate | deploy | metrics | worker POOL QUEUE…" >&2
    exit 2 ;;
esac
