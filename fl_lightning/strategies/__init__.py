"""Federated algorithms, server half: one file each."""

from fl_lightning.strategies.adafgl import AdaFGL
from fl_lightning.strategies.aggregation import Aggregation, ClippedMean, Median, MultiKrum, TrimmedMean
from fl_lightning.strategies.base import Phase, Strategy
from fl_lightning.strategies.ditto import Ditto
from fl_lightning.strategies.fedaux import FedAux
from fl_lightning.strategies.fedavg import FedAvg
from fl_lightning.strategies.feddf import FedDF
from fl_lightning.strategies.fedgta import FedGTA
from fl_lightning.strategies.fednova import FedNova
from fl_lightning.strategies.fedper import FedPer
from fl_lightning.strategies.fedpub import FedPub
from fl_lightning.strategies.fedrep import FedRep
from fl_lightning.strategies.fedsage import FedSagePlus
from fl_lightning.strategies.fedsage_prototype import FedSagePrototype
from fl_lightning.strategies.forest_ensemble import ForestEnsemble
from fl_lightning.strategies.local_only import LocalOnly
from fl_lightning.strategies.scaffold import Scaffold
from fl_lightning.strategies.server_optimizers import FedAdagrad, FedAdam, FedAvgM, FedYogi

__all__ = [
    "AdaFGL",
    "Aggregation",
    "ClippedMean",
    "Ditto",
    "FedAdagrad",
    "FedAdam",
    "FedAux",
    "FedAvg",
    "FedAvgM",
    "FedDF",
    "FedGTA",
    "FedNova",
    "FedPer",
    "FedPub",
    "FedRep",
    "FedSagePlus",
    "FedSagePrototype",
    "FedYogi",
    "ForestEnsemble",
    "LocalOnly",
    "Median",
    "MultiKrum",
    "Phase",
    "Scaffold",
    "Strategy",
    "TrimmedMean",
]
