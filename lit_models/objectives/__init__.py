"""Local objectives: what one client minimises in its training steps. One file per objective."""

from lit_models.objectives.base import Objective as Objective
from lit_models.objectives.erm import ERM as ERM
from lit_models.objectives.fedprox import FedProx as FedProx
from lit_models.objectives.fedpub import MaskedProximal as MaskedProximal
from lit_models.objectives.flit import FLIT as FLIT
from lit_models.objectives.flit import FLITPlus as FLITPlus
from lit_models.objectives.focal import FedFocal as FedFocal
from lit_models.objectives.moon import MOON as MOON
from lit_models.objectives.vat import FedVAT as FedVAT
