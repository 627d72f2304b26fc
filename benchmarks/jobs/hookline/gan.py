import torch
from common import NOISE, check_generator, make_discriminator, make_generator, ring_loader
from torch.nn.functional import binary_cross_entropy_with_logits as bce

import hookline as hl


class GAN(hl.Task):
    def __init__(self):
        super().__init__()
        self.generator, self.discriminator = make_generator(), make_discriminator()

    def configure_optimizers(self, run):
        adam = torch.optim.Adam
        return {
            "g": adam(self.generator.parameters(), lr=1e-3, betas=(0.5, 0.9)),
            "d": adam(self.discriminator.parameters(), lr=1e-3, betas=(0.5, 0.9)),
        }

    def train_batch(self, run, batch):
        (real,), ones, zeros = batch, torch.ones(len(batch[0]), 1), torch.zeros(len(batch[0]), 1)
        fake = self.generator(torch.randn(len(real), NOISE))
        d_loss = bce(self.discriminator(real), ones) + bce(self.discriminator(fake.detach()), zeros)
        run.loop.backward(d_loss, run.optimizers["d"])
        run.loop.step(run.optimizers["d"])
        run.loop.backward(bce(self.discriminator(fake), ones), run.optimizers["g"])
        run.loop.step(run.optimizers["g"])


gan = GAN()
hl.fit(gan, ring_loader, max_duration="6ep")
check_generator(gan.generator)
