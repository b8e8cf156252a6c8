"""Inference with a trained model: frames in; masks, an overlay video and tables out, with a few frames in memory."""


class InferenceError(ValueError):
    """An input or a folder for results that cannot be used; the message names it and what to do."""
