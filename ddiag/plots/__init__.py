"""Figures and tables from signals: the only room with plotly."""
