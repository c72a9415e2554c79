"""``horovodrun --doctor``: finds out from a job's recordings why it is slow, hangs or failed."""
