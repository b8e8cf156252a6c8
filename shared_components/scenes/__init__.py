"""Render synthetic surgical scenes with exact labels, and sites made of them."""
