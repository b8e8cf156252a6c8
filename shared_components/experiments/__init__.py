"""What runs many trainings: comparisons of methods, pre-training, and the weights that bundles ship."""
