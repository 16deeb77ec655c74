# The image of the node with Ray's head, the learner and TensorBoard.
source "amazon-ebs" "learner" {
  region        = var.region
  instance_type = var.build_instance_type
  ssh_username  = "ubuntu"
  ami_name      = "ludus-learner-${local.stamp}"
  encrypt_boot  = true

  # Without it, Packer would open SSH to every address while it builds.
  temporary_security_group_source_cidrs = var.build_cidrs

  source_ami_filter {
    owners      = [var.gpu ? "amazon" : "099720109477"]
    most_recent = true
    filters = {
      name                = var.gpu ? local.gpu_image : local.ubuntu
      root-device-type    = "ebs"
      virtualization-type = "hvm"
    }
  }

  launch_block_device_mappings {
    device_name           = "/dev/sda1"
    volume_type           = "gp3"
    iops                  = 3000
    throughput            = 125
    volume_size           = 80
    delete_on_termination = true
  }

  tags = {
    Project = "ludus"
    Role    = "learner"
  }
}

build {
  name    = "learner"
  sources = ["source.amazon-ebs.learner"]

  provisioner "file" {
    source      = var.sources
    destination = "/tmp/ludus.tar.gz"
  }

  provisioner "shell" {
    environment_vars = ["DEPLOY_TORCH=${var.gpu ? "cuda" : "cpu"}", "DEPLOY_ATARI=${var.atari ? 1 : 0}"]
    inline = [
      "cloud-init status --wait || true",
      "mkdir /tmp/sources && tar xzf /tmp/ludus.tar.gz -C /tmp/sources",
      local.install,
      local.clean,
    ]
  }
}
