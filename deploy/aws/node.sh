#!/usr/bin/env bash
# What a machine on AWS does around its role, as root:
#   node.sh token ROLE   the token of the cluster: the head creates it, the others wait for it
#   node.sh sync ROLE    copy runs and scores to or from the bucket
# From /etc/ludus/role.env: DEPLOY_SECRET, DEPLOY_BUCKET, AWS_DEFAULT_REGION. The rights to read the
# secret and the bucket are those of the machine; no key is stored.
set -euo pipefail
PATH="$PATH:/snap/bin"
file="${DEPLOY_TOKEN_FILE:-/run/ludus/ray-token}"
data="${DEPLOY_DATA:-/var/lib/ludus}"

# The value of the secret goes through files and pipes, never through a command line.
fetch_token() {
  aws secretsmanager get-secret-value --secret-id "$DEPLOY_SECRET" --query SecretString \
    --output text 2>/dev/null | tr -d '\n' >"$file.new" && [ -s "$file.new" ]
}

create_token() {
  od -An -N32 -tx1 /dev/urandom | tr -d ' \n' >"$file.new"
  aws secretsmanager put-secret-value --secret-id "$DEPLOY_SECRET" \
    --secret-string "file://$file.new" >/dev/null
}

token() {
  case "$1" in evaluator | tensorboard) return 0 ;; esac
  umask 077
  mkdir -p "$(dirname "$file")"
  chown ludus: "$(dirname "$file")"
  if ! fetch_token; then
    if [ "$1" = head ]; then
      create_token
    else
      until fetch_token; do sleep 5; done
    fi
  fi
  chown ludus: "$file.new"
  mv "$file.new" "$file"
}

# Links are not followed: `last` and `best` of a run are other names of folders beside them.
copy() {
  aws s3 sync --no-follow-symlinks --no-progress --only-show-errors "$1" "$2"
}

sync() {
  case "$1" in
    learner) copy "$data/runs" "s3://$DEPLOY_BUCKET/runs" ;;
    evaluator)
      copy "s3://$DEPLOY_BUCKET/runs" "$data/runs"
      copy "$data/evaluations" "s3://$DEPLOY_BUCKET/evaluations"
      ;;
  esac
}

case "${1:-}" in
  token | sync) "$1" "${2:?a role}" ;;
  *)
    echo "node.sh: token ROLE or sync ROLE" >&2
    exit 2
    ;;
esac
