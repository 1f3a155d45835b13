"""Configuration: `schema.py` types every key, the YAML groups beside it give values, `experiment/` combines them."""
