"""The native kernel: optional, built by an explicit command or for the next run, never by a training process."""
