import torch
from common import GAN_EPOCHS, NOISE, check_generator, make_discriminator, make_generator, ring_loader
from fastai.callback.core import Callback
from fastai.data.core import DataLoaders
from fastai.learner import Learner
from torch.nn.functional import binary_cross_entropy_with_logits as bce

generator, discriminator = make_generator(), make_discriminator()
d_optimizer = torch.optim.Adam(discriminator.parameters(), lr=1e-3, betas=(0.5, 0.9))


class TrainDiscriminator(Callback):
    def before_batch(self):
        (real,) = self.xb
        noise, ones, zeros = torch.randn(len(real), NOISE), torch.ones(len(real), 1), torch.zeros(len(real), 1)
        fake = self.model(noise).detach()
        d_optimizer.zero_grad()
        (bce(discriminator(real), ones) + bce(discriminator(fake), zeros)).backward()
        d_optimizer.step()
        self.learn.xb, self.learn.yb = (noise,), (ones,)


def g_loss(fake, ones):
    return bce(discriminator(fake), ones)


learn = Learner(DataLoaders(ring_loader, []), generator, g_loss, moms=(0.5, 0.5, 0.5))
learn.fit(GAN_EPOCHS, 1e-3, cbs=TrainDiscriminator())
check_generator(generator)
