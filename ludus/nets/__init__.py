"""Networks: torsos, value heads, policies, recurrence, normalisation. No losses but the heads'."""

from ludus.nets.custom_torso import Custom, register_torso
from ludus.nets.heads import (
    Categorical,
    HeadConfig,
    HeadModel,
    HeadOut,
    Implicit,
    NoisyLinear,
    Quantile,
    Scalar,
    build_head,
)
from ludus.nets.init import Scheme, initialize
from ludus.nets.inputs import Order, over_time
from ludus.nets.normalize import Normalizer
from ludus.nets.policies import PolicyDist, ValueHead, build_policy_head, params_width
from ludus.nets.qnet import QNet
from ludus.nets.recurrent import LSTMCore
from ludus.nets.torsos import (
    CNN,
    MLP,
    Auto,
    Impala,
    Nature,
    Nips,
    TorsoConfig,
    TorsoModel,
    build_torso,
    features_of,
)

__all__ = [
    "CNN",
    "MLP",
    "Auto",
    "Categorical",
    "Custom",
    "HeadConfig",
    "HeadModel",
    "HeadOut",
    "Impala",
    "Implicit",
    "LSTMCore",
    "Nature",
    "Nips",
    "NoisyLinear",
    "Normalizer",
    "Order",
    "PolicyDist",
    "QNet",
    "Quantile",
    "Scalar",
    "Scheme",
    "TorsoConfig",
    "TorsoModel",
    "ValueHead",
    "build_head",
    "build_policy_head",
    "build_torso",
    "features_of",
    "initialize",
    "over_time",
    "params_width",
    "register_torso",
]
