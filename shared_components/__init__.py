"""SurgFL: personalised federated learning for surgical video."""

__version__ = "0.1.0"
