"""Differential privacy: the Gaussian mechanism, its accountant, and the ledger of noisy updates."""
