"""As data: published drafts to compare with, and the config.json of verifiers that a plan knows without a network."""
