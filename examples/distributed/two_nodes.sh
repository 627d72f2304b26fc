#!/usr/bin/env bash
# Two machines, one run. Start the same line on both; the first argument is the name of one of them, seen from both.
#
#   bash two_nodes.sh node1 runs/digits      # on node1, and on node2
#
# The folder must be the same for both: a shared file system. torchrun meets at the port; whoever comes first waits.
set -euo pipefail

meeting=${1:?the name of one of the machines}
folder=${2:?the folder of the run, on a shared file system}
here=$(cd "$(dirname "$0")" && pwd)

# If a machine has several networks, say which one: export GLOO_SOCKET_IFNAME=eth0 NCCL_SOCKET_IFNAME=eth0
exec torchrun \
    --nnodes 2 \
    --nproc-per-node "${PROCESSES:-gpu}" \
    --rdzv-backend c10d \
    --rdzv-id "${RUN_ID:-digits}" \
    --rdzv-endpoint "$meeting:${PORT:-29500}" \
    --max-restarts 3 \
    "$here/train.py" "$folder" "${@:3}"
