#!/usr/bin/env bash
# Starts one role of a run across machines. Every file of deploy/ calls this script, so the commands
# of the roles stand only here.
#
#   role.sh token        create the token of the cluster, unless there is one
#   role.sh head         Ray's head, which all other roles connect to
#   role.sh learner      a Ray node and the training on it, in a container of its own
#   role.sh train        the training, where a Ray node runs already (that of `head`, for example);
#                        started again, it resumes the run
#   role.sh actor        a Ray node for DEPLOY_ACTORS actors
#   role.sh replay       a Ray node without actors, for a replay of its own
#   role.sh evaluator    score each new checkpoint of the run
#   role.sh tensorboard  show the curves of all runs, on the loopback address
#   role.sh health ROLE  exit code 0 if the role works
#
# Settings are environment variables:
#   DEPLOY_TRAIN            what to train: "impala pong steps=20M"
#   DEPLOY_RUN              the run's name                              default: run
#   LUDUS_RUNS_DIR          folder of the runs                          default: runs
#   DEPLOY_ACTORS           actors of this node                         default: its cores
#   DEPLOY_ALL_ACTORS       actors of all nodes together                default: 1
#   DEPLOY_HEAD             HOST:PORT of Ray's head                     default: 127.0.0.1:6379
#   DEPLOY_WAIT_SECONDS     how long to wait for the head               default: 600
#   DEPLOY_NODE_IP          address of this node                        default: Ray finds it
#   DEPLOY_DETACH           1: a Ray node goes on in the background     default: 0
#   DEPLOY_RAY_OPTIONS      more options of `ray start`
#   DEPLOY_TOKEN_FILE       the token, a file that only its owner reads default: ~/.ludus/ray-token
#   DEPLOY_OBJECT_STORE     bytes of shared memory for rows in transit  default: 1 GiB
#   DEPLOY_EVAL_SECONDS     seconds between looks for a checkpoint      default: 60
#   DEPLOY_EVAL_EPISODES    episodes of an evaluation                   default: 30
#   DEPLOY_EVAL_DIR         folder of the evaluator's scores            default: evaluations
#   DEPLOY_TENSORBOARD_HOST address of TensorBoard                      default: 127.0.0.1
set -euo pipefail

export LUDUS_RUNS_DIR="${LUDUS_RUNS_DIR:-runs}"
run="${DEPLOY_RUN:-run}"
address="${DEPLOY_HEAD:-127.0.0.1:6379}"
evaluations="${DEPLOY_EVAL_DIR:-evaluations}"

# Ray asks for the token on each of its ports. KubeRay gives it in RAY_AUTH_TOKEN instead of a file.
export RAY_AUTH_MODE=token
if [ -z "${RAY_AUTH_TOKEN:-}" ]; then
  export RAY_AUTH_TOKEN_PATH="${DEPLOY_TOKEN_FILE:-$HOME/.ludus/ray-token}"
fi
export RAY_USAGE_STATS_ENABLED=0

# Fixed ports, so that a firewall can name them. The dashboard stays off.
NODE=(
  --object-store-memory="${DEPLOY_OBJECT_STORE:-1073741824}"
  --node-manager-port=6380 --object-manager-port=6381 --runtime-env-agent-port=6382
  --dashboard-agent-listen-port=6383 --dashboard-agent-grpc-port=6384 --metrics-export-port=6385
  --min-worker-port=20000 --max-worker-port=20999
  --disable-usage-stats
)
block=(--block)
[ "${DEPLOY_DETACH:-0}" != 1 ] || block=()
# shellcheck disable=SC2206 # several words
NODE+=(${DEPLOY_RAY_OPTIONS:-})
if [ -n "${DEPLOY_NODE_IP:-}" ]; then NODE+=(--node-ip-address="$DEPLOY_NODE_IP"); fi

fail() {
  echo "role.sh: $*" >&2
  exit 2
}

token() {
  [ -z "${RAY_AUTH_TOKEN:-}" ] || return 0
  [ -s "$RAY_AUTH_TOKEN_PATH" ] && return 0
  mkdir -p "$(dirname "$RAY_AUTH_TOKEN_PATH")"
  (umask 077 && od -An -N32 -tx1 /dev/urandom | tr -d ' \n' >"$RAY_AUTH_TOKEN_PATH.new")
  mv "$RAY_AUTH_TOKEN_PATH.new" "$RAY_AUTH_TOKEN_PATH"
}

need_token() {
  if [ -n "${RAY_AUTH_TOKEN:-}" ]; then return 0; fi
  [ -s "$RAY_AUTH_TOKEN_PATH" ] || fail "no token in $RAY_AUTH_TOKEN_PATH: copy the learner's there"
  case "$(stat -c %a "$RAY_AUTH_TOKEN_PATH")" in
    400 | 600) ;;
    *) fail "others can read $RAY_AUTH_TOKEN_PATH: chmod 600 it" ;;
  esac
}

# A new node may be up before the head is.
wait_for_head() {
  local deadline=$((SECONDS + ${DEPLOY_WAIT_SECONDS:-600})) output
  until output="$(timeout 60 ray health-check --address "$address" 2>&1)"; do
    case "$output" in
      *AuthenticationError*) fail "the token is not that of the cluster at $address" ;;
    esac
    [ "$SECONDS" -lt "$deadline" ] || fail "no Ray head answers at $address"
    sleep 3
  done
}

head() {
  need_token
  exec ray start --head "${block[@]}" --port="${address##*:}" --include-dashboard=false \
    --num-cpus=0 --num-gpus=0 "${NODE[@]}"
}

train() {
  [ -n "${DEPLOY_TRAIN:-}" ] || fail "DEPLOY_TRAIN names nothing to train, such as 'dqn CartPole-v1'"
  wait_for_head
  # shellcheck disable=SC2086 # several words
  exec ludus train $DEPLOY_TRAIN --run "$run" run.fleet=ray "ray.address=$address" \
    run.actors="${DEPLOY_ALL_ACTORS:-1}"
}

# Neither the head nor the learner offers a CPU, so that actors run on the other nodes.
learner() {
  need_token
  wait_for_head
  ray start --address="$address" --num-cpus=0 "${NODE[@]}"
  train
}

actor() {
  need_token
  wait_for_head
  local actors="${DEPLOY_ACTORS:-$(nproc)}"
  exec ray start --address="$address" "${block[@]}" --num-cpus="$actors" --num-gpus=0 \
    --resources="{\"ludus-actor\": $actors}" "${NODE[@]}"
}

replay() {
  need_token
  wait_for_head
  exec ray start --address="$address" "${block[@]}" --num-cpus=0 --num-gpus=0 \
    --resources='{"ludus-replay": 1}' "${NODE[@]}"
}

# Reads the run's folder and writes to another one, so that it may be a copy or read-only. A
# checkpoint that is still being copied fails its checksum, and is tried again.
evaluator() {
  local checkpoints="$LUDUS_RUNS_DIR/$run/checkpoints" newest
  while true; do
    if [ -n "${DEPLOY_FETCH:-}" ]; then "$DEPLOY_FETCH" || echo "role.sh: $DEPLOY_FETCH failed" >&2; fi
    newest="$(find "$checkpoints" -mindepth 2 -maxdepth 2 -path '*/0*/manifest.json' 2>/dev/null |
      sort | tail -n 1)"
    newest="$(basename "$(dirname "${newest:-/}")")"
    if [ "$newest" != / ] && [ ! -e "$evaluations/$run/$newest" ]; then
      rm -rf "$evaluations/$run/$newest.part"
      ludus eval "$LUDUS_RUNS_DIR/$run" --checkpoint "$newest" --no-video \
        --episodes "${DEPLOY_EVAL_EPISODES:-30}" --out "$evaluations/$run/$newest.part" &&
        mv "$evaluations/$run/$newest.part" "$evaluations/$run/$newest"
    fi
    sleep "${DEPLOY_EVAL_SECONDS:-60}" &
    wait $! # a signal ends the wait, not only the sleep
  done
}

tensorboard() {
  exec tensorboard --logdir "$LUDUS_RUNS_DIR" --host "${DEPLOY_TENSORBOARD_HOST:-127.0.0.1}" \
    --port 6006
}

health() {
  case "${1:-}" in
    head | learner | train | actor | replay) exec ray health-check --address "$address" ;;
    evaluator) [ -d "$evaluations" ] || [ -d "$LUDUS_RUNS_DIR" ] ;;
    tensorboard) exec python3 -c 'import urllib.request as u; u.urlopen("http://127.0.0.1:6006/")' ;;
    *) fail "no health check of the role '${1:-}'" ;;
  esac
}

case "${1:-}" in
  token | head | learner | train | actor | replay | evaluator | tensorboard) "$1" ;;
  health) health "${2:-}" ;;
  *) fail "no role '${1:-}': token, head, learner, train, actor, replay, evaluator or tensorboard" ;;
esac
