"""One thread for each test process: two processes run side by side, and small tensors gain nothing."""

import torch

torch.set_num_threads(1)
