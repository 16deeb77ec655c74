# `terraform test` in this folder's parent: no account, nothing is created.
mock_provider "aws" {
  mock_data "aws_availability_zones" {
    defaults = { names = ["eu-central-1a", "eu-central-1b"] }
  }
  mock_data "aws_iam_policy_document" {
    defaults = { json = "{\"Version\": \"2012-10-17\", \"Statement\": []}" }
  }
}

variables {
  ssh_cidr       = "192.0.2.10/32"
  ssh_public_key = "tests/key.pub"
  sources        = "tests/key.pub"
  train          = "impala pong steps=20M lr=1e-3->0"
}

run "machines" {
  variables {
    actor_nodes     = 3
    actors_per_node = 5
    replay_nodes    = 2
  }

  assert {
    condition     = length(aws_instance.node) == 1 + 3 + 2 + 1
    error_message = "learner, 3 x actor, 2 x replay, evaluator"
  }
  assert {
    condition     = output.actors == 15 && strcontains(aws_instance.node["learner"].user_data, "DEPLOY_ALL_ACTORS=\"15\"")
    error_message = "nodes x actors"
  }
  assert {
    condition     = strcontains(aws_instance.node["learner"].user_data, "DEPLOY_TRAIN=\"impala pong steps=20M lr=1e-3->0\"")
    error_message = "what to train"
  }
  assert {
    condition     = strcontains(aws_instance.node["learner"].user_data, "enable --now --no-block ludus@head ludus@train ludus@tensorboard")
    error_message = "apply starts the training"
  }
  assert {
    condition     = alltrue([for node in aws_instance.node : strcontains(node.user_data, "DEPLOY_HEAD=\"${aws_instance.node["learner"].private_ip}:6379\"")])
    error_message = "all know the head"
  }
  assert {
    condition = alltrue([
      for node in aws_instance.node :
      node.root_block_device[0].encrypted && node.root_block_device[0].delete_on_termination &&
      node.metadata_options[0].http_tokens == "required"
    ])
    error_message = "disks are encrypted and go with their machine, and metadata needs a session"
  }
  assert {
    condition     = aws_s3_bucket.runs.force_destroy && aws_secretsmanager_secret.token.recovery_window_in_days == 0
    error_message = "destroy leaves nothing"
  }
}

run "the_first_start_installs_where_there_is_no_image" {
  variables {
    images = { learner = "ami-1", actor = "ami-2" }
  }

  assert {
    condition     = !strcontains(aws_instance.node["actor-000"].user_data, "provision.sh")
    error_message = "the image has it"
  }
  assert {
    condition     = strcontains(aws_instance.node["evaluator"].user_data, "provision.sh") && length(aws_s3_object.sources) == 1
    error_message = "the evaluator has no image"
  }
}

run "built_images_need_no_sources" {
  command = plan
  variables {
    images    = { learner = "ami-1", actor = "ami-2" }
    evaluator = false
    sources   = "no-such-file"
  }

  assert {
    condition     = length(aws_s3_object.sources) == 0
    error_message = "nothing to upload"
  }
}

run "ssh_from_everywhere_is_refused" {
  command = plan
  variables {
    ssh_cidr = "0.0.0.0/0"
  }
  expect_failures = [var.ssh_cidr]
}

run "ssh_from_half_of_everywhere_is_refused" {
  command = plan
  variables {
    ssh_cidr = "128.0.0.0/1"
  }
  expect_failures = [var.ssh_cidr]
}

run "words_that_would_break_a_shell_are_refused" {
  command = plan
  variables {
    train = "impala pong; rm -rf /"
  }
  expect_failures = [var.train]
}

# The image of a running machine stays, so this is a cluster of its own.
run "built_images_are_used" {
  command   = plan
  state_key = "new"
  variables {
    images = { actor = "ami-2" }
  }

  assert {
    condition     = aws_instance.node["actor-000"].ami == "ami-2"
    error_message = "by role"
  }
}
