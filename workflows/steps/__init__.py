"""The steps of the DAG: one file each, each a plain function of (config, inputs, output directory)."""
