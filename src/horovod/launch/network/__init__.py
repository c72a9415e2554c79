"""``horovodrun --check-network``: latency and bandwidth between hosts, and which link is slow."""
