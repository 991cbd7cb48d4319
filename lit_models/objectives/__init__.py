"""Local objectives: what one client minimises in its training steps. One file per objective."""

from lit_models.objectives.base import Objective as Objective
from lit_models.objectives.erm import ERM as ERM
from lit_models.objectives.fedpub import MaskedProximal as MaskedProximal
