"""Speed and memory of roformer_tf beside other implementations: `python -m benchmarks --help`."""
