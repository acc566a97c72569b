"""The installation itself: tokens, encryption keys, jobs, audit log, diagnosis and gauges."""
