"""Where the numbers go: a console line, a file, TensorBoard, Weights & Biases."""
