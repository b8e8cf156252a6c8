"""Noise on what leaves a site: the Gaussian mechanism, the noisy update in place of the plain one, and its account."""
