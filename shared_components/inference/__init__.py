"""Inference with a trained model: read frames; write masks, an overlay video and tables."""


class InferenceError(ValueError):
    """Error for an unusable input or output folder; the message names it and the remedy."""
