"""How a pre-training becomes what a bundle ships: in half precision, scored where it has not trained, with a card."""
