"""Noise on what leaves a site: the Gaussian mechanism, the noisy update, and the ledger of updates."""
