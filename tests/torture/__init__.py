"""The parts of the torture test: writers, faults, and what must hold in spite
of them. tests/test_torture.py puts them together."""
