"""Benchmarks: what Kolk costs on top of the libraries it stands on, measured in one run. See README.md."""
