"""Inference with a trained model: read frames; write masks, an overlay video and tables."""

MASK_FORMATS = ("png", "none")
VOLUMES = "nifti"
"""Output folder of NIfTI volumes."""
PACKAGES = {"torch": ("torch",), "openvino": ("openvino",), "onnx": ("onnxruntime", "onnxscript")}
"""Packages of each inference backend."""
BACKENDS = ("auto", *PACKAGES)


class InferenceError(ValueError):
    """Error for an unusable input or output folder; the message names it and the remedy."""
