terraform {
  required_version = ">= 1.7"

  required_providers {
    aws = {
      source  = "hashicorp/aws"
      version = ">= 5.60, < 7"
    }
  }
}

# Credentials come from your environment (aws configure sso, for example), never from a file here.
provider "aws" {
  region = var.region

  default_tags {
    tags = {
      Project = "ludus"
      Cluster = var.name
    }
  }
}
