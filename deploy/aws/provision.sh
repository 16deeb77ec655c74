#!/usr/bin/env bash
# Prepares a machine with Ubuntu 24.04: Ludus in /opt/ludus, a user to run it, and systemd units.
# Packer runs it when it builds an image; cloud-init runs it where no image was built. As root:
#   provision.sh SOURCES    a folder with the repository
# DEPLOY_TORCH and DEPLOY_ATARI are those of install.sh.
set -euo pipefail
sources="${1:?the folder of the repository}"
here="$sources/deploy/aws"

export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
apt-get install -y -qq --no-install-recommends python3-venv gcc libc6-dev
# Machine images for deep learning have the client of AWS already.
command -v aws >/dev/null || snap install aws-cli --classic

id ludus >/dev/null 2>&1 || useradd --system --create-home --shell /usr/sbin/nologin ludus
install -d -o ludus -g ludus -m 755 /var/lib/ludus /var/lib/ludus/runs /var/lib/ludus/evaluations
install -d -m 755 /etc/ludus

"$sources/deploy/install.sh" /opt/ludus
install -m 755 "$here/node.sh" /opt/ludus/bin/ludus-aws
install -m 644 "$here"/units/* /etc/systemd/system/
if [ -d /run/systemd/system ]; then systemctl daemon-reload; fi
