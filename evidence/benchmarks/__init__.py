"""Performance as ratios measured in one run, and what attacks do; nothing here is a timed test."""
