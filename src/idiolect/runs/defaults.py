"""Settings that suit a data set, where the user gives none."""

from idiolect.core.method import Method
from idiolect.runs.settings import Settings, merge, normalise
from idiolect.runs.signatures import fields_of

_GENERAL: Settings = {"model": "linear", "engine": "vectorised"}
_BY_DATA: dict[str, Settings] = {
    "vowels": {"rounds": 100},
    "shakespeare": {"model": "char-lstm"},
    "quadratics": {"model": "quadratic"},
    "quadratic-pair": {"model": "quadratic"},
    "quadratic-line": {"model": "quadratic"},
    # Drawn anew for every seed, so that what suits the data would change with it; papers report accuracy.
    "synthetic": {"metric": "accuracy"},
    "opposed-signs": {"metric": "accuracy"},
}
# Vowels: so few rounds that seven methods are compared in half a minute; the shared model could gain more.
# APFL's weight is chosen by mean validation accuracy over seeds 0 to 2, from adaptive, 0.25, 0.5 and 0.75:
# learned on training rows, the weight of a model that fits them all goes to 1, training alone.
# EFL: Fisher terms in every round cost twice what FedAvg sends; in every tenth they change its accuracy by
# less than seeds do, and show what compressed changes save.
_BY_DATA_AND_METHOD: dict[tuple[str, str], Settings] = {
    ("vowels", "apfl"): {"mixing": 0.75},
    ("vowels", "efl"): {"fisher_every": 10},
}


def defaults_for(data: str, method: type[Method] | None) -> Settings:
    """The settings for a data set, without hyper-parameters that the method does not have.

    None: a method that was made already, which has all of them.
    """
    settings = merge(normalise(_GENERAL), normalise(_BY_DATA.get(data, {})))
    if method is None:
        return {key: value for key, value in settings.items() if key != "method"}
    hyper_parameters = merge(settings.get("method", {}), _BY_DATA_AND_METHOD.get((data, method.name), {}))
    known = fields_of(method)
    settings["method"] = {key: value for key, value in hyper_parameters.items() if key in known}
    return settings
