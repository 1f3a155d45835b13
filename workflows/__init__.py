"""The driver: what runs, in which order, and whether it is already done. `eagle3.py` is the entry point."""
