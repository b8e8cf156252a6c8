"""Frames in; masks, an overlay video and tables out. One frame is in memory at a time, and no labels are needed."""


class InferenceError(ValueError):
    """An input, or a folder for the results, that cannot be used; the message names it and what to do."""
