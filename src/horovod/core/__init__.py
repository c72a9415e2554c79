"""What all bindings share: the world, its collectives, handles and process sets."""
