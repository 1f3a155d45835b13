"""Published drafts to compare with: config.json and the names and shapes of their tensors, as data."""
