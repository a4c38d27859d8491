"""Sums of which nobody sees a single summand, after Bonawitz et al. 2017, "Practical secure aggregation".

A room of its own: it knows names, integers modulo 2^64 and bytes, and nothing of methods, silos or networks.
What it hides from whom, and what not, is in docs/deployment.md.

| file              | has                                                                                  |
|-------------------|--------------------------------------------------------------------------------------|
| fixed_point.py    | real numbers as integers that can be summed exactly                                  |
| signing.py        | who says so: the long-term keys, exchanged beforehand                                |
| key_agreement.py  | secrets of two parties, and boxes that only the other one can open                   |
| secret_sharing.py | a secret in shares, of which some number gives it back                               |
| masks.py          | masks from seeds                                                                     |
| rule.py           | how many must take part                                                              |
| messages.py       | what crosses, and what a signature stands for                                        |
| participant.py    | the half of one who has a summand                                                    |
| collector.py      | the half of the one who gets the sum                                                 |
"""
