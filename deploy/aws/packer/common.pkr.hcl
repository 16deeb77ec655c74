# What the images of all roles share. The folder is built as a whole, or one role of it:
#   git archive --prefix=ludus/ --format=tar.gz -o ludus.tar.gz HEAD
#   packer init deploy/aws/packer
#   packer build -var sources=ludus.tar.gz deploy/aws/packer
#   packer build -only='actor.*' -var sources=ludus.tar.gz deploy/aws/packer
variable "sources" {
  type        = string
  description = "The archive of the repository that git archive wrote."
}

variable "region" {
  type        = string
  default     = "eu-central-1"
  description = "Region of the images."
}

variable "build_instance_type" {
  type        = string
  default     = "m7i.xlarge"
  description = "Machine that builds the images."
}

variable "build_cidrs" {
  type        = list(string)
  description = "Addresses from which you build, such as [\"192.0.2.10/32\"]: SSH is open to no other."
}

variable "gpu" {
  type        = bool
  default     = true
  description = "Whether the learner's image is for an NVIDIA GPU."
}

variable "atari" {
  type        = bool
  default     = false
  description = "Install ale-py, the Atari emulator, which is under the GPL-2.0."
}

locals {
  # The same Ubuntu for all roles: Ray wants the same Python on all nodes.
  ubuntu    = "ubuntu/images/hvm-ssd-gp3/ubuntu-noble-24.04-amd64-server-*"
  gpu_image = "Deep Learning Base OSS Nvidia Driver GPU AMI (Ubuntu 24.04) *"
  stamp     = formatdate("YYYYMMDD-hhmm", timestamp())
  install   = "sudo -E bash /tmp/sources/ludus/deploy/aws/provision.sh /tmp/sources/ludus"
  # The image keeps no keys, no logs and no identity of the machine that built it.
  clean = "sudo cloud-init clean --logs && sudo rm -rf /tmp/sources /tmp/ludus.tar.gz /home/*/.ssh/authorized_keys /root/.ssh/authorized_keys"
}
