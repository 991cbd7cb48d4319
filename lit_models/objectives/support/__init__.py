"""What objectives share: warm-up, a term added to a base loss, further passes, tables by sample. No objective is here."""
