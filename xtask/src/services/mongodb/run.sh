# FerretDB and the PostgreSQL behind it, as one server. Usage: run.sh HOME INSTALLED POSTGRES_PORT PORT TLS_PORT AUTH
# HOME holds the data, and the certificate; AUTH is `auth` or `no-auth`.
home=$1 installed=$2 postgres_port=$3 port=$4 tls_port=$5 auth=$6
bin=$installed/usr/lib/postgresql/18/bin
# Clients are not waited for.
trap 'kill -INT "$postgres"; kill -KILL "$ferretdb"; wait; exit 0' TERM

# One that was killed, and that nobody waits for, looks alive to the next; and it leaves a piece of shared memory.
if [ -e "$home/data/postmaster.pid" ]; then
    ipcrm --shmem-id "$(sed -n '7s/.* //p' "$home/data/postmaster.pid")"
    rm "$home/data/postmaster.pid"
fi
"$bin/postgres" -D "$home/data" -c port="$postgres_port" -c listen_addresses=127.0.0.1 -c unix_socket_directories= \
    -c dynamic_shared_memory_type=mmap -c max_connections=300 -c cron.database_name=postgres \
    -c shared_preload_libraries=pg_cron,pg_documentdb_core,pg_documentdb &
postgres=$!
ask() { "$bin/psql" -X -q -w -d "host=127.0.0.1 port=$postgres_port user=postgres dbname=postgres connect_timeout=5" -c "$1"; }
until ask 'create extension if not exists documentdb cascade' 2>/dev/null; do
    kill -0 "$postgres" || exit 1
    sleep 0.1
done

"$installed/bin/ferretdb" --postgresql-url="postgres://postgres@127.0.0.1:$postgres_port/postgres" --"$auth" \
    --listen-addr="127.0.0.1:$port" --listen-tls="127.0.0.1:$tls_port" \
    --listen-tls-cert-file="$home/server.pem" --listen-tls-key-file="$home/server.key" \
    --debug-addr=- --telemetry=disable --state-dir="$home" --log-level=warn &
ferretdb=$!
wait "$ferretdb"
