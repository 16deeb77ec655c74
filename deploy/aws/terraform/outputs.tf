output "learner" {
  description = "Address of the learner."
  value       = aws_instance.node["learner"].public_ip
}

output "actors" {
  description = "Actors of all machines together."
  value       = var.actor_nodes * var.actors_per_node
}

output "tensorboard" {
  description = "A tunnel to TensorBoard; then open http://127.0.0.1:6006."
  value       = "ssh -N -L 6006:127.0.0.1:6006 ubuntu@${aws_instance.node["learner"].public_ip}"
}

output "log" {
  description = "What the learner says."
  value       = "ssh ubuntu@${aws_instance.node["learner"].public_ip} journalctl -fu ludus@train"
}

output "copy_runs" {
  description = "Copy runs and scores here, before `terraform destroy` removes the bucket."
  value       = "aws s3 sync s3://${aws_s3_bucket.runs.id} ludus-results --exclude ludus.tar.gz"
}
