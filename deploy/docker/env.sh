#!/bin/sh
# Makes .env from .env.example with fresh secrets, readable by its owner alone; never touches one that is there.
set -eu
cd "$(dirname "$0")/../.."
if [ -e .env ]; then
    echo ".env is there already; delete it (and the volumes that know its passwords) to start afresh" >&2
    exit 1
fi
umask 077
while IFS= read -r line; do
    case "$line" in
    GRAFTWORK_SECRET_KEY= | GRAFTWORK_FLEET_TOKEN= | POSTGRES_PASSWORD= | POSTGRES_WEB_PASSWORD= | S3_SECRET_KEY=)
        echo "$line$(head -c 24 /dev/urandom | od -An -tx1 | tr -d ' \n')"
        ;;
    *) echo "$line" ;;
    esac
done <.env.example >.env.new
mv .env.new .env
echo "made .env: docker compose --profile cpu up -d --build --wait"
