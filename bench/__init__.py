"""Throughput of each stage of the data path, as ratios to baselines measured in the same run."""
