#!/bin/sh
# Trains on NNODES machines, and starts again where a process dies: call it on each of them, with the first one's
# HEAD=host:port.
#   HEAD=node1:29500 NNODES=2 examples/distributed/torchrun.sh run.toml [flags of train]
# SIGUSR1 saves and leaves. torchrun kills 30 seconds after a SIGTERM: queues should send SIGUSR1.
set -e
config=$1
shift
exec torchrun --no-python --nnodes "${NNODES:-1}" --nproc_per_node "${NPROC_PER_NODE:-8}" --max_restarts 3 \
  --rdzv_backend c10d --rdzv_endpoint "${HEAD:-localhost:0}" --signals-to-handle SIGTERM,SIGINT,SIGUSR1 \
  atelier train --config "$config" --resume latest "$@"
