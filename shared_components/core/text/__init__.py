"""Encode texts about a site as vectors for a network; see `site_text.KINDS` for the kinds of encoder."""
