"""Train, calibrate and ship the weights of bundles, and write the bundle folders."""
