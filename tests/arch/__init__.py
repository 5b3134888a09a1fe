"""Tests that hold the shape of the project: who imports whom, how long things get, what is in the wheel."""
