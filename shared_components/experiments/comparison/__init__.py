"""Compare methods over seeds and sites, in the layout of the papers' tables (`surgfl compare`)."""
