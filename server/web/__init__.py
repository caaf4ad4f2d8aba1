"""What is seen over HTTP: metrics for Prometheus, and a page for people. Read-only, off by default."""
