"""Import paths of small helpers; the code is elsewhere."""
