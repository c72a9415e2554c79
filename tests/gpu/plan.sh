#!/usr/bin/env bash
# What to run on a machine with a GPU that this project has not seen yet: `plan.sh 1`, then 2, then
# 3. It needs a Python that has PyTorch for CUDA and the project installed (PYTHON), and writes a
# log for each step to OUT. Nothing here takes longer than its limit; a step that fails stops none.
set -uo pipefail
cd "$(dirname "$0")/../.."
PYTHON=${PYTHON:-python3}
OUT=${OUT:-build/gpu}
mkdir -p "$OUT"
export HOROVOD_QUIET=1 OMP_NUM_THREADS=1 PYTHONUNBUFFERED=1 JAX_PLATFORMS=cuda XLA_PYTHON_CLIENT_PREALLOCATE=false
workers=tests/gpu/workers

# step NAME SECONDS COMMAND...: its log, and how it ended.
step() {
  local name=$1 limit=$2 begin=$SECONDS status=0
  shift 2
  timeout --kill-after=5 "$limit" "$@" >"$OUT/$name.log" 2>&1 </dev/null || status=$?
  echo "== $name: status $status, $((SECONDS - begin)) s"
  local lines=3
  [ $status = 0 ] || lines=25
  tail -n "${LINES_SHOWN:-$lines}" "$OUT/$name.log"
}

job() { # NAME SECONDS RANKS WORDS...
  step "$1" "$2" "$PYTHON" -m horovod.runner.launch -np "$3" "${@:4}"
}

# Two ranks that NCCL takes for ranks of two hosts: it may then run both on one card.
on_nccl() { # NAME SECONDS COMMAND...
  local name=$1 limit=$2
  shift 2
  NCCL_SOCKET_IFNAME=lo NCCL_DEBUG=WARN HOROVOD_GPU_OPERATIONS=${WAY:-nccl} \
    job "$name" "$limit" 2 bash -c "NCCL_HOSTID=h\$HOROVOD_RANK exec ${UNDER:-} $PYTHON $*"
}

probe() {
  nvidia-smi -L
  nvidia-smi --query-gpu=name,driver_version,memory.total,compute_mode,mig.mode.current --format=csv
  nvcc --version | tail -n 2
  ldconfig -p | grep -E 'libcuda|libnccl|libcrypto' || true
  "$PYTHON" -c 'import sys, torch; print(sys.version); print("torch", torch.__version__, torch.cuda.nccl.version(), "C exchange of DLPack:", hasattr(torch.Tensor, "__dlpack_c_exchange_api__"))'
  "$PYTHON" -m horovod.runner.launch --check-build --verbose
}

call_1() {
  LINES_SHOWN=40 step probe 60 bash -c probe
  LINES_SHOWN=60 step first_contact 60 "$PYTHON" tests/gpu/first_contact.py
  LINES_SHOWN=30 step tests 200 "$PYTHON" -m pytest -p no:cacheprovider -W default -n "${JOBS:-3}" --timeout 100 tests/gpu
  step plain_nccl 45 bash -c "MASTER_ADDR=127.0.0.1 MASTER_PORT=29511 NCCL_SOCKET_IFNAME=lo $PYTHON -m horovod.runner.launch -np 2 bash -c 'NCCL_HOSTID=h\$HOROVOD_RANK exec $PYTHON $workers/plain_nccl.py'" &
  job jax_1 90 1 "$PYTHON" $workers/jax_collectives.py &
  wait
  job jax_2 90 2 "$PYTHON" $workers/jax_collectives.py &
  on_nccl jax_nccl 90 $workers/jax_collectives.py &
  job jax_errors 90 2 "$PYTHON" $workers/jax_errors.py &
  on_nccl jax_errors_nccl 90 $workers/jax_errors.py &
  job torch_distributed_1 60 1 "$PYTHON" $workers/torch_distributed.py &
  wait
  job torch_distributed_2 60 2 "$PYTHON" $workers/torch_distributed.py &
  on_nccl nccl_collectives 60 $workers/collectives.py &
  wait
}

call_2() {
  on_nccl nccl_training 60 $workers/training.py &
  on_nccl nccl_ordering 60 $workers/ordering.py &
  on_nccl nccl_lost_rank 60 $workers/lost_rank.py "$(mktemp -d)" &
  wait
  HOROVOD_HIERARCHICAL_ALLREDUCE=1 on_nccl nccl_levels 60 $workers/collectives.py &
  HOROVOD_NUM_NCCL_STREAMS=2 on_nccl nccl_streams 60 $workers/collectives.py &
  on_nccl nccl_torch 60 $workers/torch_distributed.py &
  wait
  job full_card 60 2 "$PYTHON" $workers/full_card.py
  PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True job expandable 60 2 "$PYTHON" $workers/collectives.py &
  # On each rank: it does not follow the launcher into the sessions of its workers.
  LINES_SHOWN=6 HOROVOD_START_TIMEOUT=100 job sanitizer 170 2 \
    compute-sanitizer --tool memcheck --error-exitcode 9 "$PYTHON" $workers/kernels.py &
  # NCCL asks for kernels that are not there, and expects the errors.
  UNDER="compute-sanitizer --report-api-errors no --error-exitcode 9" HOROVOD_START_TIMEOUT=100 \
    on_nccl sanitizer_nccl 170 $workers/kernels.py &
  on_nccl nccl_kernels 60 $workers/kernels.py &
  wait
}

# The bodies of the CPU's tests, with tensors on the card.
pytest="-m pytest -q -W default -p no:cacheprovider --timeout 60 --tb=short --capture=no"
bodies() { # FOLDER SECONDS
  HOROVOD_TEST_DEVICE=cuda LINES_SHOWN=4 job "bodies_$1" "$2" 2 "$PYTHON" $pytest "tests/parallel/$1"
}
bodies_on_nccl() { # FOLDER SECONDS
  HOROVOD_TEST_DEVICE=cuda HOROVOD_TEST_OVER_NCCL=1 LINES_SHOWN=4 WAY=auto \
    on_nccl "bodies_$1_nccl" "$2" $pytest "tests/parallel/$1"
}

call_3() {
  bodies torch 200 &
  bodies torch_distributed 100 &
  bodies jax 250 &
  bodies_on_nccl torch 200 &
  wait
  if "$PYTHON" -c 'import tensorflow' 2>/dev/null; then
    export HOROVOD_ENABLE_XLA_OPS=1
    job tensorflow_1 90 1 "$PYTHON" $workers/tensorflow_collectives.py &
    job tensorflow_2 90 2 "$PYTHON" $workers/tensorflow_collectives.py &
    on_nccl tensorflow_nccl 90 $workers/tensorflow_collectives.py &
    wait
  fi
  LINES_SHOWN=5 job in_turns 60 1 "$PYTHON" benchmarks/gpu_in_turns.py
  LINES_SHOWN=12 on_nccl in_turns_nccl 120 benchmarks/gpu_in_turns.py --record
  LINES_SHOWN=150 step benchmark 130 "$PYTHON" benchmarks/gpu.py --quick
}

export -f probe
export PYTHON
case "${1:-}" in
  1 | 2 | 3) "call_$1" ;;
  *) echo "usage: $0 1|2|3" >&2; exit 2 ;;
esac
