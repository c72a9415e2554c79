"""The import paths of the launcher that existing scripts and tools use; the code is elsewhere."""
