"""Import paths of what elastic launchers ask for; the code is elsewhere."""
