data "aws_ssm_parameter" "base" {
  for_each = {
    cpu = "/aws/service/canonical/ubuntu/server/24.04/stable/current/amd64/hvm/ebs-gp3/ami-id"
    gpu = "/aws/service/deeplearning/ami/x86_64/base-oss-nvidia-driver-gpu-ubuntu-24.04/latest/ami-id"
  }

  name = each.value
}

locals {
  head = cidrhost(local.subnet, 10)

  # One entry for each machine. `units` are those of deploy/aws/units that it starts.
  learner = {
    learner = {
      role = "learner", profile = "learner", type = var.learner_instance_type, disk = var.learner_disk
      spot = false, units = "ludus@head ludus@train ludus@tensorboard ludus-sync@learner.timer"
    }
  }
  actors = {
    for i in range(var.actor_nodes) : format("actor-%03d", i) => {
      role = "actor", profile = "node", type = var.actor_instance_type, disk = 30
      spot = var.actor_spot, units = "ludus@actor"
    }
  }
  replays = {
    for i in range(var.replay_nodes) : format("replay-%03d", i) => {
      role = "replay", profile = "node", type = var.replay_instance_type, disk = 30
      spot = false, units = "ludus@replay"
    }
  }
  evaluators = {
    for name in var.evaluator ? ["evaluator"] : [] : name => {
      role = "evaluator", profile = "evaluator", type = var.evaluator_instance_type, disk = 60
      spot = false, units = "ludus@evaluator ludus-sync@evaluator.timer"
    }
  }
  install = !alltrue([for node in values(local.nodes) : contains(keys(var.images), node.role)])
  nodes   = merge(local.learner, local.actors, local.replays, local.evaluators)

  # The settings of deploy/role.sh and deploy/aws/node.sh, for every machine. None is a secret.
  settings = {
    DEPLOY_HEAD        = "${local.head}:6379"
    DEPLOY_TRAIN       = var.train
    DEPLOY_RUN         = var.run
    LUDUS_RUNS_DIR     = "/var/lib/ludus/runs"
    DEPLOY_EVAL_DIR    = "/var/lib/ludus/evaluations"
    DEPLOY_ACTORS      = var.actors_per_node
    DEPLOY_ALL_ACTORS  = var.actor_nodes * var.actors_per_node
    DEPLOY_TOKEN_FILE  = "/run/ludus/ray-token"
    DEPLOY_SECRET      = aws_secretsmanager_secret.token.id
    DEPLOY_BUCKET      = aws_s3_bucket.runs.id
    AWS_DEFAULT_REGION = var.region
    OMP_NUM_THREADS    = 1
  }
}

resource "aws_instance" "node" {
  # checkov:skip=CKV_AWS_88:public addresses are the way out to packages; no group lets anything in
  # checkov:skip=CKV_AWS_126:detailed monitoring costs money, and a run has its own curves
  # checkov:skip=CKV2_AWS_41:every machine has a profile, by role
  for_each = local.nodes

  ami                         = lookup(var.images, each.value.role, data.aws_ssm_parameter.base[each.value.role == "learner" && var.gpu ? "gpu" : "cpu"].insecure_value)
  instance_type               = each.value.type
  subnet_id                   = aws_subnet.nodes.id
  private_ip                  = each.key == "learner" ? local.head : null
  associate_public_ip_address = true
  key_name                    = aws_key_pair.you.key_name
  iam_instance_profile        = aws_iam_instance_profile.node[each.value.profile].name
  ebs_optimized               = true
  user_data_replace_on_change = true
  vpc_security_group_ids = concat(
    [aws_security_group.out.id],
    each.value.role == "evaluator" ? [] : [aws_security_group.ray.id],
    each.value.role == "learner" ? [aws_security_group.ssh.id] : [],
  )

  # A machine that turns itself off is gone, with its disk.
  instance_initiated_shutdown_behavior = "terminate"

  user_data = templatefile("${path.module}/user-data.yaml.tftpl", {
    settings = local.settings
    units    = each.value.units
    install  = !contains(keys(var.images), each.value.role)
    torch    = each.value.role == "learner" && var.gpu ? "cuda" : "cpu"
    atari    = var.atari ? 1 : 0
    bucket   = aws_s3_bucket.runs.id
  })

  metadata_options {
    http_endpoint               = "enabled"
    http_tokens                 = "required"
    http_put_response_hop_limit = 1
  }

  root_block_device {
    encrypted             = true
    delete_on_termination = true
    volume_type           = "gp3"
    volume_size           = each.value.disk
    tags                  = { Name = "${var.name}-${each.key}" }
  }

  dynamic "instance_market_options" {
    for_each = each.value.spot ? [1] : []

    content {
      market_type = "spot"
    }
  }

  # The rights and the sources have to be there before the machine asks for them.
  depends_on = [
    aws_iam_role_policy.node, aws_s3_object.sources, aws_route_table_association.nodes,
    aws_vpc_security_group_egress_rule.web, aws_vpc_security_group_egress_rule.ray,
  ]

  tags = { Name = "${var.name}-${each.key}" }

  lifecycle {
    ignore_changes = [ami] # a newer base image replaces no running machine
  }
}
