"""The optimizer steps in the backward, and clears each gradient."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import hookline as hl

torch.manual_seed(0)
x = torch.randn(320, 8)
y = (x @ torch.randn(8, 5)).argmax(1)


class Stepping(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(8, 5)
        self.optimizers = {each: torch.optim.SGD([each], lr=0.01) for each in self.net.parameters()}
        for parameter in self.net.parameters():
            parameter.register_post_accumulate_grad_hook(self.update)

    def update(self, parameter):
        self.optimizers[parameter].step()
        parameter.grad = None

    def forward(self, x):
        return self.net(x)


trainer = hl.Trainer(max_duration="1ep", progress=False, seed=0)
trainer.fit(
    Stepping(),
    DataLoader(TensorDataset(x, y), batch_size=32, shuffle=True),
    loss=nn.CrossEntropyLoss(),
    optimizer=lambda parameters: torch.optim.Adam(parameters, lr=1e-3),
)
