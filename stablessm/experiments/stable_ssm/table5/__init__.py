"""Sequential MNIST, map by map."""
