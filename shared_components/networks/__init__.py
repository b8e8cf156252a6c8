"""Architectures, their parts and protocols, checkpoints, the description of a bundle, ONNX."""
