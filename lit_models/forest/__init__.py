"""Random forests on fingerprints: trees as arrays, how they are grown, and the module that trains and predicts with them."""

from lit_models.forest.module import LitMoleculeForest as LitMoleculeForest
