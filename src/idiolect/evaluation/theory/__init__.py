"""What the papers prove, as numbers: constants, bounds and diagnostics. Spec 7, docs/theory.md.

The files:

    quadratics   μ, L, σ², ζ, .. of the federations of quadratics, exactly
    mixing       APFL: the best mixing, rates
    consensus    Additive: how far its machines are apart
    additive     Additive: what is exact on quadratics, theorems 1 and 2, figure 4
    rates        Additive's table 1: four methods side by side
    elastic      EFL: theorems 1 and 2
    mixtures     PERM: generalisation, how weights and models converge
"""
