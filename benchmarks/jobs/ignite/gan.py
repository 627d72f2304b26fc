import torch
from common import GAN_EPOCHS, NOISE, check_generator, make_discriminator, make_generator, ring_loader
from ignite.engine import Engine
from torch.nn.functional import binary_cross_entropy_with_logits as bce

generator, discriminator = make_generator(), make_discriminator()
g_optimizer = torch.optim.Adam(generator.parameters(), lr=1e-3, betas=(0.5, 0.9))
d_optimizer = torch.optim.Adam(discriminator.parameters(), lr=1e-3, betas=(0.5, 0.9))


def update(engine, batch):
    (real,), ones, zeros = batch, torch.ones(len(batch[0]), 1), torch.zeros(len(batch[0]), 1)
    fake = generator(torch.randn(len(real), NOISE))
    d_optimizer.zero_grad()
    (bce(discriminator(real), ones) + bce(discriminator(fake.detach()), zeros)).backward()
    d_optimizer.step()
    g_optimizer.zero_grad()
    bce(discriminator(fake), ones).backward()
    g_optimizer.step()


Engine(update).run(ring_loader, max_epochs=GAN_EPOCHS)
check_generator(generator)
