"""Import paths of the job's store; the code is elsewhere."""
