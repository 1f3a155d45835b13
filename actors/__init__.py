"""The workers: processes that hold an engine or train, and the pure code that they call. Never imports `workflows`."""
