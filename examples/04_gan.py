"""A GAN: two optimizers that the task drives itself. The generator learns a ring of points.

python examples/04_gan.py
"""

import math

import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits as bce

import hookline as hl


def mlp(inputs, outputs):
    return nn.Sequential(nn.Linear(inputs, 64), nn.LeakyReLU(0.2), nn.Linear(64, 64), nn.LeakyReLU(0.2),
                         nn.Linear(64, outputs))  # fmt: skip


class GAN(hl.Task):
    def __init__(self):
        super().__init__()
        self.generator, self.discriminator = mlp(8, 2), mlp(2, 1)

    def configure_optimizers(self, run):
        adam = torch.optim.Adam
        return {
            "generator": adam(self.generator.parameters(), lr=1e-3, betas=(0.5, 0.9)),
            "discriminator": adam(self.discriminator.parameters(), lr=1e-3, betas=(0.5, 0.9)),
        }

    def train_batch(self, run, real):
        loop, optimizers, number = run.loop, run.optimizers, len(real)
        fake = self.generator(torch.randn(number, 8))
        answers = self.discriminator(torch.cat([real, fake.detach()]))
        wanted = torch.cat([torch.ones(number, 1), torch.zeros(number, 1)])
        loop.backward(bce(answers, wanted), optimizers["discriminator"])
        loop.step(optimizers["discriminator"])
        loop.backward(bce(self.discriminator(fake), torch.ones(number, 1)), optimizers["generator"])
        loop.step(optimizers["generator"])

    def predict_batch(self, run, noise):
        return self.generator(noise)


def ring(number):
    angle = 2 * math.pi * torch.rand(number)
    return torch.stack([angle.cos(), angle.sin()], 1) * 2 + 0.05 * torch.randn(number, 2)


torch.manual_seed(0)
gan, noise = GAN(), [torch.randn(1000, 8)]
trainer = hl.Trainer(max_duration="800st", progress=False, folder=False)
before = trainer.predict(gan, noise).norm(dim=1)
result = trainer.fit(gan, [ring(256) for _ in range(100)])
after = trainer.predict(gan, noise).norm(dim=1)
print(f"{result.clock.step} steps, updates {result.clock.updates}")
print(f"distance from the centre (real: 2.00 +- 0.05): {before.mean():.2f} +- {before.std():.2f} before training")
print(f"{after.mean():.2f} +- {after.std():.2f} after it")
