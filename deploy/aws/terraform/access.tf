# What nodes may do, where runs are kept, and how the token of Ray reaches the nodes.

# Runs, scores, and the sources where no image was built. It goes with the cluster, contents included:
# copy the runs first (see the output `copy_runs`).
resource "aws_s3_bucket" "runs" {
  # checkov:skip=CKV_AWS_18:access logs would need a second bucket that stays
  # checkov:skip=CKV_AWS_21:files of a run are written once; old versions would only cost
  # checkov:skip=CKV_AWS_144:the bucket lives as long as the cluster
  # checkov:skip=CKV_AWS_145:encrypted with the key of S3; a key of one's own would stay after destroy
  # checkov:skip=CKV2_AWS_62:nobody waits for events
  bucket_prefix = "${var.name}-"
  force_destroy = true
}

resource "aws_s3_bucket_public_access_block" "runs" {
  bucket                  = aws_s3_bucket.runs.id
  block_public_acls       = true
  block_public_policy     = true
  ignore_public_acls      = true
  restrict_public_buckets = true
}

resource "aws_s3_bucket_server_side_encryption_configuration" "runs" {
  bucket = aws_s3_bucket.runs.id

  rule {
    apply_server_side_encryption_by_default {
      sse_algorithm = "AES256"
    }
  }
}

resource "aws_s3_bucket_lifecycle_configuration" "runs" {
  bucket = aws_s3_bucket.runs.id

  rule {
    id     = "unfinished uploads"
    status = "Enabled"
    filter {}

    abort_incomplete_multipart_upload {
      days_after_initiation = 1
    }
  }
}

resource "aws_s3_object" "sources" {
  for_each = local.install ? toset([var.sources]) : []

  bucket = aws_s3_bucket.runs.id
  key    = "ludus.tar.gz"
  source = each.value
  etag   = filemd5(each.value)
}

# A place for the token, without a value: the head writes one when it starts, and the other nodes
# read it. So the token is in no file, not in user data and not in Terraform's state.
resource "aws_secretsmanager_secret" "token" {
  # checkov:skip=CKV_AWS_149:encrypted with the key of the account; a key of one's own would stay after destroy
  # checkov:skip=CKV2_AWS_57:a new cluster has a new token
  name_prefix             = "${var.name}-ray-token-"
  description             = "Token of the Ray cluster ${var.name}"
  recovery_window_in_days = 0
}

locals {
  bucket = aws_s3_bucket.runs.arn

  # Each role may do what it needs, and nothing else.
  rights = {
    learner = [
      { actions = ["secretsmanager:GetSecretValue", "secretsmanager:PutSecretValue"], resources = [aws_secretsmanager_secret.token.arn] },
      { actions = ["s3:ListBucket"], resources = [local.bucket] },
      { actions = ["s3:GetObject", "s3:PutObject"], resources = ["${local.bucket}/runs/*"] },
      { actions = ["s3:GetObject"], resources = ["${local.bucket}/ludus.tar.gz"] },
    ]
    node = [
      { actions = ["secretsmanager:GetSecretValue"], resources = [aws_secretsmanager_secret.token.arn] },
      { actions = ["s3:GetObject"], resources = ["${local.bucket}/ludus.tar.gz"] },
    ]
    evaluator = [
      { actions = ["s3:ListBucket"], resources = [local.bucket] },
      { actions = ["s3:GetObject"], resources = ["${local.bucket}/runs/*", "${local.bucket}/ludus.tar.gz"] },
      { actions = ["s3:GetObject", "s3:PutObject"], resources = ["${local.bucket}/evaluations/*"] },
    ]
  }
}

data "aws_iam_policy_document" "machines" {
  statement {
    actions = ["sts:AssumeRole"]

    principals {
      type        = "Service"
      identifiers = ["ec2.amazonaws.com"]
    }
  }
}

data "aws_iam_policy_document" "rights" {
  for_each = local.rights

  dynamic "statement" {
    for_each = each.value

    content {
      actions   = statement.value.actions
      resources = statement.value.resources
    }
  }
}

resource "aws_iam_role" "node" {
  for_each           = local.rights
  name_prefix        = "${var.name}-${each.key}-"
  assume_role_policy = data.aws_iam_policy_document.machines.json
}

resource "aws_iam_role_policy" "node" {
  for_each = local.rights
  name     = "ludus"
  role     = aws_iam_role.node[each.key].id
  policy   = data.aws_iam_policy_document.rights[each.key].json
}

resource "aws_iam_instance_profile" "node" {
  for_each    = local.rights
  name_prefix = "${var.name}-${each.key}-"
  role        = aws_iam_role.node[each.key].name
}

resource "aws_key_pair" "you" {
  key_name_prefix = "${var.name}-"
  public_key      = file(pathexpand(var.ssh_public_key))
}
