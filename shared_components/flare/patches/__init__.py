"""What we replace of FLARE: one file each, with what FLARE does there; see `replace`."""
