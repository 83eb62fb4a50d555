# Sourced by tests/run, from the repository's root. start_services installs and starts what the tests need and exports where
# it is; stop_services ends exactly what was started.
#
#   AFTERCOMMIT_TEST_POSTGRES     URL of a PostgreSQL superuser
#   AFTERCOMMIT_TEST_PGBOUNCER    the same through pgbouncer: transaction mode, two server connections per database
#   AFTERCOMMIT_TEST_AMQP         URL of a RabbitMQ
#   AFTERCOMMIT_TEST_NATS         URL of a NATS server with JetStream
#   AFTERCOMMIT_TEST_REDIS        URL of a Redis
#   AFTERCOMMIT_TEST_SMTP         URL of a mail server that takes mail for shop.test and delivers it into ...
#   AFTERCOMMIT_TEST_MAILDIR      ... this folder, in Maildir format
#   AFTERCOMMIT_TEST_NATS_SERVER  the NATS server's program, and
#   AFTERCOMMIT_TEST_RABBITMQ     RabbitMQ's program, for tests that start and kill a server of their own
#   AFTERCOMMIT_TEST_PG_BIN       folder of the server's binaries, for tests that start and kill a server of their own
#   AFTERCOMMIT_TEST_PYTHON       a Python with tests/requirements.txt
#   AFTERCOMMIT_TEST_LOCALSTRIPE  localstripe, of tests/requirements.txt
#   AFTERCOMMIT_TEST_STRIPE_MOCK  autostart.js of stripe-stateful-mock
#   AFTERCOMMIT_TEST_NODE         a folder whose node_modules has what tests/package.json lists
#   AFTERCOMMIT_TEST_CHROMIUM     Debian's Chromium
#   AFTERCOMMIT_TEST_NGINX        Debian's nginx, for tests that start one in front of a dashboard
# shellcheck shell=bash

scratch=$(mktemp -d -t aftercommit.XXXXXX)
chmod 755 "$scratch" # mktemp makes 0700: the servers' users could not enter.
pids=()
rabbit_pids=()

say() { echo "tests/run: $*" >&2; }
die() { say "$*"; exit 1; }

stop_services() {
  local pid
  for pid in ${pids[@]+"${pids[@]}"}; do kill -INT "$pid" 2>/dev/null || true; done
  for pid in ${pids[@]+"${pids[@]}"}; do wait "$pid" 2>/dev/null || true; done
  stop_rabbitmq
  rm -rf "$scratch"
}

# Becomes COMMAND as USER; setpriv execs, so that the shell's $! is the server itself.
as() {
  local user=$1
  shift
  if [ "$(id -u)" = 0 ]; then
    exec setpriv --reuid "$user" --regid "$(id -gn "$user")" --init-groups "$@"
  fi
  exec "$@"
}

apt_install() {
  [ "$(id -u)" = 0 ] || die "$* is missing and only root can install it: apt-get install $*"
  command -v apt-get >/dev/null || die "$* is missing and there is no apt-get: install it, or set the variables in tests/services.sh"
  local policy=
  if [ ! -e /usr/sbin/policy-rc.d ]; then # Debian would start the installed server at once.
    policy=/usr/sbin/policy-rc.d
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod 755 "$policy"
  fi
  say "installing $*"
  local done=0
  { apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "$@"; } >"$scratch/apt.log" 2>&1 || done=1
  [ -z "$policy" ] || rm -f "$policy"
  [ "$done" = 0 ] || { tail -20 "$scratch/apt.log" >&2; die "apt-get could not install $*"; }
}

postgres_binaries() {
  local found
  if [ -n "${AFTERCOMMIT_TEST_PG_BIN:-}" ]; then echo "$AFTERCOMMIT_TEST_PG_BIN"; return; fi
  found=$(find /usr/lib/postgresql -maxdepth 3 -path '*/bin/initdb' 2>/dev/null | sort -V | tail -1)
  if [ -z "$found" ] && command -v pg_config >/dev/null; then found=$(pg_config --bindir)/initdb; fi
  if [ -x "$found" ]; then dirname "$found"; fi
}

# A port that was free a moment ago; whoever uses it must be ready to lose it.
free_port() { python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }

server_user() { if id postgres >/dev/null 2>&1; then echo postgres; else echo nobody; fi; }

start_postgres() {
  local user port try pid n
  user=$(server_user)
  mkdir "$scratch/postgres"
  [ "$(id -u)" != 0 ] || chown "$user:" "$scratch/postgres"
  (cd "$scratch" && as "$user" "$AFTERCOMMIT_TEST_PG_BIN/initdb" -D "$scratch/postgres/data" -U postgres -A trust -E UTF8 \
    --locale=C.UTF-8 --no-sync) >"$scratch/postgres.log" 2>&1 || { tail -20 "$scratch/postgres.log" >&2; die "initdb failed"; }
  for try in 1 2 3; do
    port=$(free_port)
    # fsync is for power cuts, which no test here makes; a killed server loses nothing without it.
    (cd "$scratch" && as "$user" "$AFTERCOMMIT_TEST_PG_BIN/postgres" -D "$scratch/postgres/data" -p "$port" \
      -c listen_addresses=127.0.0.1 -c unix_socket_directories="$scratch/postgres" -c max_connections=400 -c fsync=off \
      -c max_prepared_transactions=20 -c log_line_prefix='%m [%p] %d ') >>"$scratch/postgres.log" 2>&1 &
    pid=$!
    for n in $(seq 1 600); do
      if grep -q 'database system is ready to accept connections' "$scratch/postgres.log"; then
        pids+=("$pid")
        export AFTERCOMMIT_TEST_POSTGRES="postgres://postgres@127.0.0.1:$port/postgres"
        return
      fi
      kill -0 "$pid" 2>/dev/null || break
      sleep .05
    done
    kill -INT "$pid" 2>/dev/null || true
    wait "$pid" 2>/dev/null || true
    say "PostgreSQL did not start on port $port (try $try)"
  done
  tail -20 "$scratch/postgres.log" >&2
  die "PostgreSQL did not start"
}

# In front of the server: what it does not know among the start parameters it refuses, as it would anywhere.
start_pgbouncer() {
  local user port try pid n server
  user=$(server_user)
  mkdir "$scratch/pgbouncer"
  server=$(python3 -c 'import sys, urllib.parse as u
p = u.urlsplit(sys.argv[1])
print(f"host={p.hostname} port={p.port or 5432} user={p.username}" + (f" password={p.password}" if p.password else ""))' "$AFTERCOMMIT_TEST_POSTGRES")
  for try in 1 2 3; do
    port=$(free_port)
    printf '%s\n' '[databases]' "* = $server" '[pgbouncer]' 'listen_addr = 127.0.0.1' "listen_port = $port" 'unix_socket_dir =' \
      'auth_type = any' 'pool_mode = transaction' 'default_pool_size = 2' 'max_client_conn = 500' >"$scratch/pgbouncer/ini"
    [ "$(id -u)" != 0 ] || chown -R "$user:" "$scratch/pgbouncer"
    : >"$scratch/pgbouncer.log"
    (cd "$scratch" && as "$user" "$pgbouncer" "$scratch/pgbouncer/ini") >"$scratch/pgbouncer.log" 2>&1 &
    pid=$!
    for n in $(seq 1 200); do
      if grep -q 'process up' "$scratch/pgbouncer.log"; then
        pids+=("$pid")
        export AFTERCOMMIT_TEST_PGBOUNCER="postgres://postgres@127.0.0.1:$port/postgres"
        return
      fi
      kill -0 "$pid" 2>/dev/null || break
      sleep .05
    done
    kill -INT "$pid" 2>/dev/null || true
    wait "$pid" 2>/dev/null || true
    say "pgbouncer did not start on port $port (try $try)"
  done
  tail -20 "$scratch/pgbouncer.log" >&2
  die "pgbouncer did not start"
}

# launch NAME USER COMMAND...: starts a server in a folder of its own, and stops it with the others.
launch() {
  local name=$1 user=$2
  shift 2
  (cd "$scratch/$name" && as "$user" "$@") >>"$scratch/$name.log" 2>&1 &
  pids+=("$!")
}

# room NAME USER: a folder that only the server's user needs.
room() {
  mkdir -p "$scratch/$1"
  [ "$(id -u)" != 0 ] || chown -R "$2:" "$scratch/$1"
}

# answers PORT: waits until somebody listens there; fails when nobody does in ten seconds, or when the server ended.
answers() {
  local n
  for n in $(seq 1 200); do
    if (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; then return; fi
    kill -0 "${pids[-1]}" 2>/dev/null || return 1
    sleep .05
  done
  return 1
}

# start NAME: calls launch_NAME PORT until a server answers there; the port may be taken before the server has it.
start() {
  local name=$1 try port
  for try in 1 2 3; do
    port=$(free_port)
    "launch_$name" "$port"
    if answers "$port"; then return; fi
    kill -KILL "${pids[-1]}" 2>/dev/null || true
    say "$name did not start on port $port (try $try)"
  done
  tail -20 "$scratch/$name.log" >&2
  die "$name did not start"
}

launch_nats() {
  local user
  user=$(if id nats >/dev/null 2>&1; then echo nats; else server_user; fi)
  room nats "$user"
  launch nats "$user" "$nats" -a 127.0.0.1 -p "$1" -js -sd "$scratch/nats"
  export AFTERCOMMIT_TEST_NATS=nats://127.0.0.1:$1
}

launch_redis() {
  local user
  user=$(if id redis >/dev/null 2>&1; then echo redis; else server_user; fi)
  room redis "$user"
  launch redis "$user" redis-server --port "$1" --bind 127.0.0.1 --dir "$scratch/redis" --appendonly yes --save ''
  export AFTERCOMMIT_TEST_REDIS=redis://127.0.0.1:$1
}

# A mail server that we did not write: it takes mail for shop.test and one refused address, and puts it into a Maildir.
launch_exim() {
  local user
  user=$(if id Debian-exim >/dev/null 2>&1; then echo Debian-exim; else server_user; fi)
  rm -rf "$scratch/exim"
  mkdir -p "$scratch/exim/spool"
  room exim "$user"
  sed -e "s|@PORT@|$1|; s|@FOLDER@|$scratch/exim|; s|@USER@|$user|; s|@GROUP@|$(id -gn "$user")|" tests/exim.conf >"$scratch/exim.conf"
  chmod 644 "$scratch/exim.conf"
  launch exim "$user" "$exim" -C "$scratch/exim.conf" -bdf
  export AFTERCOMMIT_TEST_SMTP=smtp://127.0.0.1:$1 AFTERCOMMIT_TEST_MAILDIR=$scratch/exim/box
}

# RabbitMQ takes ten seconds to start: launch_rabbitmq does not wait for it, await_rabbitmq does.
launch_rabbitmq() {
  local user folder
  user=$(if id rabbitmq >/dev/null 2>&1; then echo rabbitmq; else server_user; fi)
  folder=$scratch/rabbitmq
  rm -rf "$folder"
  mkdir "$folder"
  echo '[].' >"$folder/plugins"
  [ "$(id -u)" != 0 ] || chown -R "$user:" "$folder"
  rabbit_port=$(free_port)
  # Its name server, which it would otherwise start itself and leave behind.
  export ERL_EPMD_PORT ERL_EPMD_ADDRESS=127.0.0.1
  ERL_EPMD_PORT=$(free_port)
  (cd "$folder" && as "$user" epmd) >"$scratch/epmd.log" 2>&1 &
  rabbit_pids=("$!")
  (
    cd "$folder"
    export HOME=$folder RABBITMQ_NODENAME=t$rabbit_port@localhost RABBITMQ_NODE_IP_ADDRESS=127.0.0.1 RABBITMQ_NODE_PORT=$rabbit_port \
      RABBITMQ_DIST_PORT RABBITMQ_MNESIA_BASE=$folder/db RABBITMQ_LOG_BASE=$folder/log RABBITMQ_LOGS=- \
      RABBITMQ_ENABLED_PLUGINS_FILE=$folder/plugins RABBITMQ_CONF_ENV_FILE=/dev/null RABBITMQ_CONFIG_FILE=$folder/none
    RABBITMQ_DIST_PORT=$(free_port)
    as "$user" "$rabbitmq" # Debian's wrapper on the path would write to the machine's log folder.
  ) >"$scratch/rabbitmq.log" 2>&1 &
  rabbit_pids+=("$!")
}

await_rabbitmq() {
  local try n
  for try in 1 2 3; do
    for n in $(seq 1 1200); do
      if grep -q 'Server startup complete' "$scratch/rabbitmq.log"; then
        export AFTERCOMMIT_TEST_AMQP="amqp://guest:guest@127.0.0.1:$rabbit_port/%2f"
        return
      fi
      kill -0 "${rabbit_pids[1]}" 2>/dev/null || break
      sleep .05
    done
    say "RabbitMQ did not start on port $rabbit_port (try $try)"
    stop_rabbitmq
    [ "$try" = 3 ] || launch_rabbitmq
  done
  tail -20 "$scratch/rabbitmq.log" >&2
  die "RabbitMQ did not start"
}

# At once: an orderly end takes seconds, and nobody wants to keep what it has.
stop_rabbitmq() {
  local pid script=${rabbit_pids[1]:-none} children=()
  # The second one is a script, whose child is the server.
  read -ra children 2>/dev/null <"/proc/$script/task/$script/children" || true
  rabbit_pids+=(${children[@]+"${children[@]}"})
  for pid in ${rabbit_pids[@]+"${rabbit_pids[@]}"}; do kill -KILL "$pid" 2>/dev/null || true; done
  for pid in ${rabbit_pids[@]+"${rabbit_pids[@]}"}; do wait "$pid" 2>/dev/null || true; done
  rabbit_pids=()
}

# install_once NAME LOCKFILE COMMAND...: runs COMMAND DIRECTORY unless the directory was made from the same lock file.
install_once() {
  local name=$1 lock=$2 into stamp
  shift 2
  into=$cache/$name
  stamp=$(sha256sum "$lock" | cut -d' ' -f1)
  if [ "$(cat "$into/.lock" 2>/dev/null)" != "$stamp" ]; then
    say "installing $lock"
    rm -rf "$into"
    mkdir -p "$into"
    "$@" "$into" >"$scratch/$name.log" 2>&1 || { tail -20 "$scratch/$name.log" >&2; die "could not install $lock"; }
    echo "$stamp" >"$into/.lock"
  fi
}

python_packages() { python3 -m venv "$1" && "$1/bin/pip" install -q --disable-pip-version-check -r tests/requirements.txt; }
node_packages() { cp tests/package.json tests/package-lock.json "$1" && npm ci --prefix "$1" --no-audit --no-fund --ignore-scripts; }

start_services() {
  local target
  target=${CARGO_TARGET_DIR:-target}
  mkdir -p "$target/tests-env"
  cache=$(cd "$target/tests-env" && pwd)

  python3 -c 'import venv, ensurepip' 2>/dev/null || apt_install python3 python3-venv
  command -v npm >/dev/null || apt_install nodejs npm
  command -v systemd-analyze >/dev/null || apt_install systemd
  command -v curl >/dev/null || apt_install curl

  if [ -z "${AFTERCOMMIT_TEST_POSTGRES:-}" ] && [ -z "$(postgres_binaries)" ]; then apt_install postgresql; fi
  AFTERCOMMIT_TEST_PG_BIN=$(postgres_binaries)
  export AFTERCOMMIT_TEST_PG_BIN

  pgbouncer=$(PATH=$PATH:/usr/sbin command -v pgbouncer || true)
  if [ -z "${AFTERCOMMIT_TEST_PGBOUNCER:-}" ] && [ -z "$pgbouncer" ]; then
    apt_install pgbouncer
    pgbouncer=$(PATH=$PATH:/usr/sbin command -v pgbouncer)
  fi

  nats=$(PATH=$PATH:/usr/sbin command -v nats-server || true)
  exim=$(PATH=$PATH:/usr/sbin command -v exim4 || true)
  nginx=$(PATH=$PATH:/usr/sbin command -v nginx || true)
  local missing=()
  [ -n "$nats" ] || missing+=(nats-server)
  [ -n "$exim" ] || missing+=(exim4-daemon-light)
  [ -n "$nginx" ] || missing+=(nginx-light)
  command -v redis-server >/dev/null || missing+=(redis-server)
  command -v promtool >/dev/null || missing+=(prometheus) # for its promtool; the server is not started
  if [ ${#missing[@]} -gt 0 ]; then apt_install "${missing[@]}"; fi
  nats=$(PATH=$PATH:/usr/sbin command -v nats-server)
  exim=$(PATH=$PATH:/usr/sbin command -v exim4)
  nginx=$(PATH=$PATH:/usr/sbin command -v nginx)
  export AFTERCOMMIT_TEST_NATS_SERVER=$nats AFTERCOMMIT_TEST_NGINX=$nginx

  # With fonts, or every page would be of boxes.
  command -v chromium >/dev/null || apt_install chromium fonts-liberation
  export AFTERCOMMIT_TEST_CHROMIUM=${AFTERCOMMIT_TEST_CHROMIUM:-$(command -v chromium)}

  rabbitmq=/usr/lib/rabbitmq/bin/rabbitmq-server
  export AFTERCOMMIT_TEST_RABBITMQ=$rabbitmq
  if [ -z "${AFTERCOMMIT_TEST_AMQP:-}" ]; then
    [ -x "$rabbitmq" ] || apt_install rabbitmq-server
    launch_rabbitmq
  fi

  exec 9>"$cache/lock" # Two runs at once must not install into the same folder.
  flock 9
  if [ -z "${AFTERCOMMIT_TEST_PYTHON:-}" ]; then
    install_once python tests/requirements.txt python_packages
    export AFTERCOMMIT_TEST_PYTHON=$cache/python/bin/python
  fi
  export AFTERCOMMIT_TEST_LOCALSTRIPE=${AFTERCOMMIT_TEST_LOCALSTRIPE:-$(dirname "$AFTERCOMMIT_TEST_PYTHON")/localstripe}
  if [ -z "${AFTERCOMMIT_TEST_NODE:-}" ]; then
    install_once node tests/package-lock.json node_packages
    export AFTERCOMMIT_TEST_NODE=$cache/node
  fi
  export AFTERCOMMIT_TEST_STRIPE_MOCK=${AFTERCOMMIT_TEST_STRIPE_MOCK:-$AFTERCOMMIT_TEST_NODE/node_modules/stripe-stateful-mock/autostart.js}
  exec 9>&-

  if [ -z "${AFTERCOMMIT_TEST_POSTGRES:-}" ]; then start_postgres; fi
  if [ -z "${AFTERCOMMIT_TEST_PGBOUNCER:-}" ]; then start_pgbouncer; fi
  if [ -z "${AFTERCOMMIT_TEST_NATS:-}" ]; then start nats; fi
  if [ -z "${AFTERCOMMIT_TEST_REDIS:-}" ]; then start redis; fi
  if [ -z "${AFTERCOMMIT_TEST_SMTP:-}" ]; then start exim; fi
  if [ -z "${AFTERCOMMIT_TEST_AMQP:-}" ]; then await_rabbitmq; fi
}
