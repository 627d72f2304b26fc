import torch
from common import GAN_EPOCHS, NOISE, check_generator, make_discriminator, make_generator, ring_loader
from composer import Trainer
from composer.models import ComposerModel
from torch.nn.functional import binary_cross_entropy_with_logits as bce


class GAN(ComposerModel):
    def __init__(self):
        super().__init__()
        self.generator, self.discriminator = make_generator(), make_discriminator()
        self.d_optimizer = torch.optim.Adam(self.discriminator.parameters(), lr=1e-3, betas=(0.5, 0.9))

    def forward(self, batch):
        (real,), ones, zeros = batch, torch.ones(len(batch[0]), 1), torch.zeros(len(batch[0]), 1)
        fake = self.generator(torch.randn(len(real), NOISE))
        self.d_optimizer.zero_grad()
        (bce(self.discriminator(real), ones) + bce(self.discriminator(fake.detach()), zeros)).backward()
        self.d_optimizer.step()
        return self.discriminator(fake)

    def loss(self, outputs, batch):
        return bce(outputs, torch.ones_like(outputs))


gan = GAN()
g_optimizer = torch.optim.Adam(gan.generator.parameters(), lr=1e-3, betas=(0.5, 0.9))
Trainer(model=gan, train_dataloader=ring_loader, optimizers=g_optimizer, max_duration=f"{GAN_EPOCHS}ep").fit()
check_generator(gan.generator)
