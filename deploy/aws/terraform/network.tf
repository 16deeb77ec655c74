# A network of its own: one public subnet, so that nodes can fetch packages, and nothing that comes
# in but SSH to the learner.
locals {
  network = "10.77.0.0/16"
  subnet  = "10.77.0.0/23"
}

data "aws_availability_zones" "open" {
  # checkov:skip=CKV_AWS_394:any zone will do, and only the first is used
  state = "available"
}

resource "aws_vpc" "ludus" {
  # checkov:skip=CKV2_AWS_11:flow logs cost money and say little about a network that is closed
  cidr_block           = local.network
  enable_dns_support   = true
  enable_dns_hostnames = true
  tags                 = { Name = var.name }
}

# The group that AWS adds to each network: without any rule.
resource "aws_default_security_group" "none" {
  vpc_id = aws_vpc.ludus.id
}

resource "aws_subnet" "nodes" {
  vpc_id                  = aws_vpc.ludus.id
  cidr_block              = local.subnet
  availability_zone       = var.availability_zone == "" ? data.aws_availability_zones.open.names[0] : var.availability_zone
  map_public_ip_on_launch = false
  tags                    = { Name = var.name }
}

resource "aws_internet_gateway" "out" {
  vpc_id = aws_vpc.ludus.id
  tags   = { Name = var.name }
}

resource "aws_route_table" "out" {
  vpc_id = aws_vpc.ludus.id

  route {
    cidr_block = "0.0.0.0/0"
    gateway_id = aws_internet_gateway.out.id
  }
}

resource "aws_route_table_association" "nodes" {
  subnet_id      = aws_subnet.nodes.id
  route_table_id = aws_route_table.out.id
}

# Traffic with the bucket stays inside the network of AWS.
resource "aws_vpc_endpoint" "s3" {
  vpc_id          = aws_vpc.ludus.id
  service_name    = "com.amazonaws.${var.region}.s3"
  route_table_ids = [aws_route_table.out.id]
}

resource "aws_security_group" "ray" {
  name        = "${var.name}-ray"
  description = "Ray between the nodes of one cluster"
  vpc_id      = aws_vpc.ludus.id
}

# The ports of deploy/role.sh: head, node manager, object manager, agents, client, workers.
resource "aws_vpc_security_group_ingress_rule" "ray" {
  for_each = {
    nodes   = [6379, 6385]
    client  = [10001, 10001]
    workers = [20000, 20999]
  }

  security_group_id            = aws_security_group.ray.id
  referenced_security_group_id = aws_security_group.ray.id
  description                  = "Ray, ${each.key}"
  ip_protocol                  = "tcp"
  from_port                    = each.value[0]
  to_port                      = each.value[1]
}

resource "aws_vpc_security_group_egress_rule" "ray" {
  security_group_id            = aws_security_group.ray.id
  referenced_security_group_id = aws_security_group.ray.id
  description                  = "Ray, to the other nodes"
  ip_protocol                  = "tcp"
  from_port                    = 6379
  to_port                      = 20999
}

resource "aws_security_group" "out" {
  name        = "${var.name}-out"
  description = "Packages and the services of AWS"
  vpc_id      = aws_vpc.ludus.id
}

resource "aws_vpc_security_group_egress_rule" "web" {
  for_each = { http = 80, https = 443 }

  security_group_id = aws_security_group.out.id
  cidr_ipv4         = "0.0.0.0/0"
  description       = "Packages and the services of AWS, ${each.key}"
  ip_protocol       = "tcp"
  from_port         = each.value
  to_port           = each.value
}

resource "aws_security_group" "ssh" {
  name        = "${var.name}-ssh"
  description = "SSH to the learner"
  vpc_id      = aws_vpc.ludus.id
}

# The only way in. TensorBoard listens on the learner's loopback address, behind it.
resource "aws_vpc_security_group_ingress_rule" "ssh" {
  security_group_id = aws_security_group.ssh.id
  cidr_ipv4         = var.ssh_cidr
  description       = "SSH from the named addresses"
  ip_protocol       = "tcp"
  from_port         = 22
  to_port           = 22
}
