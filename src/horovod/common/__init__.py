"""Import paths that existing scripts use; nothing here has logic of its own."""
