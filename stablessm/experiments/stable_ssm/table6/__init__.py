"""Sequential CIFAR-10, map by map."""
