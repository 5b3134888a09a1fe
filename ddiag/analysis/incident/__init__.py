"""From what logs, dumps and tools say to the signals of an incident."""
