"""Models by name, for the data that they are to fit; a file for each family.

All work under `torch.func.functional_call`, `grad` and `vmap`, so that every client can have parameters of
its own in one batched call. Initial parameters are a pure function of (seed, model). Each has its last layer
registered last, which makes it the part `head` of methods that divide a model.
"""

from idiolect.core.several import Several
from idiolect.models.adapters import add_adapters, merge_adapters
from idiolect.models.catalogue import CATALOGUE, MODELS, build_model, one_of_several, outline_model, several
from idiolect.models.dense import ElementwiseProduct, Linear, Perceptron, dnn, linear, mlp, quadratic
from idiolect.models.images import Convolutional, LeNet, ResNet, cnn, cnn4, lenet, resnet
from idiolect.models.sequences import GRU, Bag, CharLSTM, Transformer, bag, char_lstm, gru, transformer

__all__ = [
    "CATALOGUE",
    "GRU",
    "MODELS",
    "Bag",
    "CharLSTM",
    "Convolutional",
    "ElementwiseProduct",
    "LeNet",
    "Linear",
    "Perceptron",
    "ResNet",
    "Several",
    "Transformer",
    "add_adapters",
    "bag",
    "build_model",
    "char_lstm",
    "cnn",
    "cnn4",
    "dnn",
    "gru",
    "lenet",
    "linear",
    "merge_adapters",
    "mlp",
    "one_of_several",
    "outline_model",
    "quadratic",
    "resnet",
    "several",
    "transformer",
]
