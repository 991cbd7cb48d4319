"""People's own molecules: files of texts (``files``), what is learnt of them (``targets``, ``labels``), and all of it read at
once (``spec``, ``reader``); ``findings`` says what about it may hurt.
"""
