"""Encode texts about a site as vectors for a network; see `site_text.KINDS` for the kinds of encoder."""

READERS = ("clip", "sentence")
"""Kinds of encoder for any text, which can fill a file."""
