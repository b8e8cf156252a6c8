"""Checks of SurgFL's dependencies for security officers: `make supply-chain`."""
