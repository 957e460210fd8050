"""Read and count a model: parameters, operations, memory traffic, module times."""
