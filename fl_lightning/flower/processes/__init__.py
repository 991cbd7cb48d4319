"""Processes around a federation across machines. They stay small: each is run as a script, imports nothing of this package
but its neighbours in this folder, and so neither torch nor Lightning."""
