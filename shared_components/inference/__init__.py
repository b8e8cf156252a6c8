"""Inference with a trained model: read frames; write masks, an overlay video and tables."""

MASK_FORMATS = ("png", "none")
EXPORTS = ("coco", "cvat", "labelme", "nifti", "nrrd", "png", "yolo")
"""Formats of annotation tools; each is a module `export_*`."""
NIFTI = "nifti"  # name of the format and its folder
PACKAGES = {"torch": ("torch",), "openvino": ("openvino",), "onnx": ("onnxruntime", "onnxscript")}
"""Packages of each inference backend."""
BACKENDS = ("auto", *PACKAGES)


class InferenceError(ValueError):
    """Error for an unusable input or output folder; the message names it and the remedy."""
