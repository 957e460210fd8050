"""Open windows of the profiler, record and export them."""
