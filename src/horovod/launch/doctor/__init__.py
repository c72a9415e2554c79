"""``horovodrun --doctor``: what recordings of a job say, in plain words."""
