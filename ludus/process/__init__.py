"""What a process may use of its machine. Nothing about reinforcement learning."""
