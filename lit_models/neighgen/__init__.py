"""NeighGen, the missing-neighbour generator of FedSage+: client side.

``module.py`` is the LightningModule (phase 1 and mending), ``exchange.py`` the federated training of fGen (phase 2), on
``generators.py`` and ``losses.py``; ``calibration.py`` is where it starts, ``report.py`` how good it is.
"""

from lit_models.neighgen.module import LitNeighGen as LitNeighGen
