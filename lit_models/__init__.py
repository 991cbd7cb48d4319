"""LightningModules and every client-side equation; they run as they are under a stock ``lightning.Trainer``."""

from lit_models.adaptive_node_classifier import LitAdaptiveNodeClassifier as LitAdaptiveNodeClassifier
from lit_models.adaptive_propagation import AdaptivePropagation as AdaptivePropagation
from lit_models.auxiliary_projection import AuxiliaryProjection as AuxiliaryProjection
from lit_models.base import LitGraphModule as LitGraphModule
from lit_models.base import SampleLosses as SampleLosses
from lit_models.base import snapshot as snapshot
from lit_models.encoders import GAT as GAT
from lit_models.encoders import GCN as GCN
from lit_models.encoders import GIN as GIN
from lit_models.encoders import GraphSAGE as GraphSAGE
from lit_models.fast_nnconv import FastNNConv as FastNNConv
from lit_models.forest import LitMoleculeForest as LitMoleculeForest
from lit_models.functional_embedding import functional_embedding as functional_embedding
from lit_models.gcn_molecule import GCNMolecule as GCNMolecule
from lit_models.gin_molecule import GINMolecule as GINMolecule
from lit_models.masked_gcn import GCNWithHead as GCNWithHead
from lit_models.masked_gcn import Masked as Masked
from lit_models.masked_gcn import MaskedGCN as MaskedGCN
from lit_models.molecule_encoder import MoleculeEncoder as MoleculeEncoder
from lit_models.molecule_predictor import LitMoleculePredictor as LitMoleculePredictor
from lit_models.mpnn import MPNN as MPNN
from lit_models.neighgen import LitNeighGen as LitNeighGen
from lit_models.node_classifier import LitNodeClassifier as LitNodeClassifier
from lit_models.propagation import APPNP as APPNP
from lit_models.propagation import GPRGNN as GPRGNN
from lit_models.schnet import SchNet as SchNet
