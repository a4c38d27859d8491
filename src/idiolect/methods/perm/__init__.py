"""PERM: personal mixtures of all clients' losses (Deng et al. 2023). Spec 5.

Client i's model v_i minimises Φ(α_i, v) = Σ_j α_i(j) f_j(v). The files, in reading order:

    weights      α_i = argmin over the simplex of  Σ_j α(j) z_ij + λ Σ_j α(j)² / n_j            (eq. 2)
    sizes        m_i: what client i holds, where models have different sizes
    noise        how much of z_ij is the gradients' own noise
    distances    z_ij = |g_i - g_j|², some rows at a time
    matrix       A: all rows α_i, by their non-zero weights
    route        round j of an epoch: model i visits client c = σ((i + j) mod N)
    server       w, all v_i and g_i, A
    gradients    g_i = ∇f_i(w), from them A;  w <- Π_W(w - γ mean g)
    visits       K steps  v_i <- v_i - η N α_i(c) ∇f_c(v_i; ξ)  at client c
    newcomer     weights and a model for a client that comes after training
    mixtures     what both variants have in common: first w alone, then epochs of visits
    single_loop  Algorithm 2: new weights for every epoch
    two_stages   Algorithms A1 and 1: weights once, at a trained w
"""

from idiolect.methods.perm.single_loop import PERM
from idiolect.methods.perm.two_stages import PERMTwoStage

__all__ = ["PERM", "PERMTwoStage"]
