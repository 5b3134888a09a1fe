"""Programs for those who work on ddiag; nothing here is in the wheel."""
