"""People's own tables, as far as neither graphs nor molecules are needed to read them, and the graphs that are made of them.

What is no table is refused (``scan``); rows are read exactly (``table``), their fields understood (``values``, ``names``,
``guessing``), and files compared (``agreement``). ``graph_reader`` makes a graph of nodes (``nodes``, ``features``,
``classes``) and links (``links``, ``graph_links``), and ``findings`` says what about it may hurt.
"""
