#!/usr/bin/env bash
# What a container is: server | services | migrate | deploy | metrics | serve | worker POOL QUEUE… |
# engine | engine-worker ADDRESS | flow-run | cli ARGUMENTS…
# `flow-run` is one run, which a worker outside has made this container for (docs/how-to/scale-out.md); it is told which by the environment.
# `cli` is the command `autocoder` with this container's ledger, login and workspace, for a person who types.
# Passwords are read from /run/secrets, as far as this container was given them, and are in no image and no argument.
# One that is there and can't be read ends the container: nothing may fall back to a ledger or a key of its own.
set -euo pipefail
SECRETS=${SECRETS:-/run/secrets}
POSTGRES=${AUTOCODER_POSTGRES:-postgres:5432}
has() { [ -e "$SECRETS/$1" ]; }
secret() {
  [ -r "$SECRETS/$1" ] || { echo "entrypoint: $SECRETS/$1 is missing, or not readable by uid $(id -u)" >&2; return 2; }
  cat "$SECRETS/$1"
}

if has prefect_db_password; then
  password=$(secret prefect_db_password)
  export PREFECT_API_DATABASE_CONNECTION_URL="postgresql+asyncpg://prefect:$password@$POSTGRES/prefect"
fi
if has redis_password; then
  password=$(secret redis_password)
  export PREFECT_REDIS_MESSAGING_URL="redis://:$password@redis:6379/0"
  export PREFECT_SERVER_DOCKET_URL="redis://:$password@redis:6379/1"
fi
# Without the password the ledger is still this one, and refuses; what was revoked is then told by the list beside the bundles.
export AUTOCODER_LEDGER_URL="postgresql+psycopg://autocoder@$POSTGRES/ledger"
if has ledger_release_password; then
  password=$(secret ledger_release_password)
  export AUTOCODER_LEDGER_URL="postgresql+psycopg://autocoder_release:$password@$POSTGRES/ledger"
elif has ledger_password; then
  password=$(secret ledger_password)
  export AUTOCODER_LEDGER_URL="postgresql+psycopg://autocoder:$password@$POSTGRES/ledger"
else
  export AUTOCODER_NO_LEDGER=yes
fi
# The same for the key that signs bundles; it takes a copy that nobody else may read.
export AUTOCODER_SIGNING_KEY="$SECRETS/signing_key"
if has signing_key; then
  key=$(secret signing_key)
  export AUTOCODER_SIGNING_KEY="${TMPDIR:-/tmp}/signing-key.pem"
  (umask 077 && rm -f "$AUTOCODER_SIGNING_KEY" && printf '%s\n' "$key" > "$AUTOCODER_SIGNING_KEY")
fi

# And for the S3 server that machines share stages by, unless the environment has credentials of another one.
if [ -n "${AUTOCODER_STORAGE:-}" ] && [ -z "${AWS_ACCESS_KEY_ID:-}" ] && has storage_key; then
  key=$(secret storage_key)
  export AWS_ACCESS_KEY_ID=autocoder AWS_SECRET_ACCESS_KEY="$key" AWS_DEFAULT_REGION="${AWS_DEFAULT_REGION:-us-east-1}"
fi

case "${1:-}" in
  server)
    login=$(secret prefect_login)
    export PREFECT_SERVER_API_AUTH_STRING="$login"
    exec prefect server start --no-services --host 0.0.0.0 --port 4200 ;;
  services)
    login=$(secret prefect_login)
    export PREFECT_SERVER_API_AUTH_STRING="$login"
    export AUTOCODER_ALIVE_FILE=/tmp/services.alive  # its health check looks how old it is
    exec python -m flows.server.services ;;
  migrate)
    password=$(secret ledger_owner_password)
    # Prefect's own schema too, where this house's server is the one beside it
    if has prefect_db_password; then prefect server database upgrade -y; fi
    AUTOCODER_LEDGER_URL="postgresql+psycopg://ledger_owner:$password@$POSTGRES/ledger" \
      autocoder ledger migrate --app-role autocoder --release-role autocoder_release ;;
  deploy)
    login=$(secret prefect_login)
    export PREFECT_API_AUTH_STRING="$login"
    [ -n "${AUTOCODER_NOTIFY_WEBHOOK:-}" ] || unset AUTOCODER_NOTIFY_WEBHOOK  # set to nothing it would be an address
    exec autocoder deploy ;;
  cli)
    login=$(secret prefect_login)
    export PREFECT_API_AUTH_STRING="$login"
    shift
    exec autocoder "$@" ;;
  metrics)
    login=$(secret prefect_login)
    export PREFECT_API_AUTH_STRING="$login"
    exec autocoder status --serve 0.0.0.0:9464 ;;
  serve)  # on a network where the proxy alone is
    for name in signing_public api_keys; do secret "$name" > /dev/null; done
    exec autocoder serve --host 0.0.0.0 --proxy '*' --allowed-host "${AUTOCODER_SITE:-127.0.0.1}" \
      --key "$SECRETS/signing_public" --api-key-file "$SECRETS/api_keys" ;;
  engine)  # on a network of its own workers; the certificates decide who may join
    exec autocoder engine ;;
  engine-worker)
    exec autocoder engine --join "$2" ;;
  watch)
    login=$(secret prefect_login)
    export PREFECT_API_AUTH_STRING="$login"
    exec python -m flows.server.watch ;;
  launcher)  # of a work pool of type kubernetes: it makes a job of each run (deployments/kubernetes/overlays/jobs)
    login=$(secret prefect_login)
    export PREFECT_API_AUTH_STRING="$login"
    exec prefect worker start --pool "$2" --work-queue "$3" --type kubernetes --with-healthcheck --name "$2-$(hostname)" ;;
  flow-run)
    login=$(secret prefect_login)
    export PREFECT_API_AUTH_STRING="$login"
    exec prefect flow-run execute ;;
  worker)
    login=$(secret prefect_login)
    export PREFECT_API_AUTH_STRING="$login"
    pool=$2
    shift 2
    if [ "$pool" = gpu ] && ! python -c 'import torch; torch.cuda.init()'; then
      echo "entrypoint: worker of the pool gpu: torch finds no CUDA device. Give the container a card, or stop this worker" >&2
      exit 1
    fi
    queues=()
    for queue in "$@"; do queues+=(--work-queue "$queue"); done
    exec prefect worker start --pool "$pool" "${queues[@]}" --type process --limit 1 --with-healthcheck --name "$pool-$(hostname)" ;;
  *)
    echo "entrypoint: server | services | migrate | deploy | metrics | serve | worker POOL QUEUE… | engine | engine-worker ADDRESS | watch | launcher POOL QUEUE | flow-run | cli ARGUMENTS…" >&2
    exit 2 ;;
esac
