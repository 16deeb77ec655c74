variable "name" {
  type        = string
  default     = "ludus"
  description = "Name of the cluster, and the beginning of the names of all that is created."

  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{1,20}$", var.name))
    error_message = "Small letters, digits and hyphens, at most 21 of them."
  }
}

variable "region" {
  type        = string
  default     = "eu-central-1"
  description = "Region of AWS. Capacity and prices of instance types differ between regions."
}

variable "availability_zone" {
  type        = string
  default     = ""
  description = "Zone of all nodes; empty: any. Traffic between zones costs money, so there is one."
}

# What to train.

variable "train" {
  type        = string
  description = "Words of `ludus train`: an algorithm, an environment and settings, such as \"impala pong steps=20M\"."

  validation {
    condition     = length(split(" ", var.train)) >= 2 && can(regex("^[-A-Za-z0-9_.,:=+>/@%() ]+$", var.train))
    error_message = "An algorithm, an environment and key=value settings, without quotes or other signs."
  }
}

variable "run" {
  type        = string
  default     = "run"
  description = "Name of the run."

  validation {
    condition     = can(regex("^[A-Za-z0-9][A-Za-z0-9_.-]*$", var.run))
    error_message = "Letters, digits, dots, hyphens and underscores."
  }
}

# How many machines, and which.

variable "actor_nodes" {
  type        = number
  default     = 2
  description = "Machines with actors."

  validation {
    condition     = var.actor_nodes >= 1 && var.actor_nodes <= 200
    error_message = "From 1 to 200: the subnet has no more addresses."
  }
}

variable "actors_per_node" {
  type        = number
  default     = 8
  description = "Actors of each machine: one for each core, as a rule."

  validation {
    condition     = var.actors_per_node >= 1 && var.actors_per_node <= 512
    error_message = "From 1 to 512."
  }
}

variable "replay_nodes" {
  type        = number
  default     = 0
  description = "Machines for a replay of its own; 0: replay is with the learner."

  validation {
    condition     = var.replay_nodes >= 0 && var.replay_nodes <= 16
    error_message = "From 0 to 16."
  }
}

variable "evaluator" {
  type        = bool
  default     = true
  description = "Whether one machine scores each checkpoint."
}

variable "learner_instance_type" {
  type        = string
  default     = "g6.4xlarge"
  description = "Machine of Ray's head, the learner and TensorBoard."
}

variable "actor_instance_type" {
  type        = string
  default     = "c7i.2xlarge"
  description = "Machines with actors."
}

variable "replay_instance_type" {
  type        = string
  default     = "r7i.2xlarge"
  description = "Machines with a replay: memory for the rows, as `ludus train --dry-run` estimates it."
}

variable "evaluator_instance_type" {
  type        = string
  default     = "c7i.large"
  description = "Machine of the evaluator."
}

variable "actor_spot" {
  type        = bool
  default     = false
  description = "Actors on spot machines: cheaper, and taken away at any time. The learner stays."
}

# Images. Without them cloud-init installs Ludus at the first start, in some minutes.

variable "gpu" {
  type        = bool
  default     = true
  description = "Whether the learner has an NVIDIA GPU."
}

variable "atari" {
  type        = bool
  default     = false
  description = "Install ale-py, the Atari emulator, which is under the GPL-2.0, where no image was built."
}

variable "images" {
  type        = map(string)
  default     = {}
  description = "Images that Packer built, by role: learner, actor, replay, evaluator."

  validation {
    condition     = alltrue([for role in keys(var.images) : contains(["learner", "actor", "replay", "evaluator"], role)])
    error_message = "Roles are learner, actor, replay and evaluator."
  }
}

variable "sources" {
  type        = string
  default     = "ludus.tar.gz"
  description = "The archive of the repository that git archive wrote; for roles without an image."
}

# Who may connect.

variable "ssh_cidr" {
  type        = string
  description = "The addresses that may reach the learner by SSH, such as \"192.0.2.10/32\"."

  validation {
    condition     = can(cidrnetmask(var.ssh_cidr)) && try(tonumber(split("/", var.ssh_cidr)[1]) >= 16, false)
    error_message = "A network of IPv4 with a mask of 16 bits or more, such as 192.0.2.10/32. 0.0.0.0/0 is refused."
  }
}

variable "ssh_public_key" {
  type        = string
  description = "File of your public key."
  default     = "~/.ssh/id_ed25519.pub"
}

variable "learner_disk" {
  type        = number
  default     = 100
  description = "Gigabytes of the learner's disk, with all checkpoints."
}
