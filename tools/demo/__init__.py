"""The demo behind ``make demo``: a real two-rank training with a planted bottleneck, recorded and diagnosed."""
