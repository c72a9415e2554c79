"""What a job has counted, for programs and for Prometheus; see docs/observability.md."""
