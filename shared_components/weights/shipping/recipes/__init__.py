"""Recipes of the weights that bundles ship, one a file; see `shipping.recipe`."""
