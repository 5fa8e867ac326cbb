#!/bin/sh
# Trains with several processes on this machine: examples/distributed/launch.sh run.toml [flags of train]
set -e
config=$1
shift
exec atelier launch --nproc_per_node "${NPROC_PER_NODE:-auto}" -- train --config "$config" "$@"
