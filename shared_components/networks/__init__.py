"""Network architectures, parts, protocols, checkpoints, bundle configs and ONNX export."""
