"""Tests of ddiag; `unit/` mirrors the package, `cases/` goes from evidence to diagnosis."""
