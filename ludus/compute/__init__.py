"""How tensors are computed: device, precision, CUDA graphs, compilation, memory."""
