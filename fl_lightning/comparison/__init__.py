"""``fl-lightning compare``: methods x settings x seeds from one YAML, in parallel processes, into one report."""
