"""How hosts are connected over TCP."""
