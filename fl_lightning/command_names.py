"""Names of the commands that need no torch; all others are those of training (``fl_lightning/cli.py``)."""

AT_SITES = ("site", "server", "client")  # fl_lightning/flower/commands.py
COMPARING = ("compare", "report")  # fl_lightning/comparison/commands.py
