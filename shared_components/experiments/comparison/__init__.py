"""`surgfl compare`: methods beside each other, over seeds and sites, with the papers' tables."""
