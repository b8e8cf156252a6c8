"""Performance as ratios measured in one run; nothing here is a timed test."""
