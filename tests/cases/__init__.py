"""From evidence to diagnosis."""
