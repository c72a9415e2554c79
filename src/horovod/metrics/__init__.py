"""A job's metrics for programs and for Prometheus; see docs/observability.md."""
