"""Readers of text that people and programs print: logs, kernel messages, outputs of tools, in any mix in one file."""
