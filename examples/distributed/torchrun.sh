#!/bin/sh
# Trains on NNODES machines, and starts again where a process dies: call it on each of them, with the first one's
# HEAD=host:port.
#   HEAD=node1:29500 NNODES=2 examples/distributed/torchrun.sh run.toml [flags of train]
# SIGTERM, SIGINT or SIGUSR1 to torchrun reaches the processes, which save and leave. torchrun waits 30 seconds for them,
# kills them then, whatever the signal was, and ends with 1. A signal to one of the processes alone has all of them save
# and leave with 75, which torchrun takes for a failure: it starts them again. Where saving takes longer than 30 seconds,
# let the run save on its way (--save_steps), or ask one process for it ahead of the end, which leaves none of them:
#   pkill -USR2 -o -x atelier
set -e
config=$1
shift
exec torchrun --no-python --nnodes "${NNODES:-1}" --nproc_per_node "${NPROC_PER_NODE:-8}" --max_restarts 3 \
  --rdzv_backend c10d --rdzv_endpoint "${HEAD:-localhost:0}" --signals-to-handle SIGTERM,SIGINT,SIGUSR1 \
  atelier train --config "$config" --resume latest "$@"
