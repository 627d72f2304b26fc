import keras
import torch
from common import GAN_EPOCHS, NOISE, check_generator, make_discriminator, make_generator, ring_loader
from torch.nn.functional import binary_cross_entropy_with_logits as bce


class GAN(keras.Model):
    def __init__(self):
        super().__init__()
        self.generator, self.discriminator = make_generator(), make_discriminator()
        self.g_optimizer = torch.optim.Adam(self.generator.parameters(), lr=1e-3, betas=(0.5, 0.9))
        self.d_optimizer = torch.optim.Adam(self.discriminator.parameters(), lr=1e-3, betas=(0.5, 0.9))
        self.built = True

    def train_step(self, data):
        (real,), ones, zeros = data, torch.ones(len(data[0]), 1), torch.zeros(len(data[0]), 1)
        fake = self.generator(torch.randn(len(real), NOISE))
        self.d_optimizer.zero_grad()
        (bce(self.discriminator(real), ones) + bce(self.discriminator(fake.detach()), zeros)).backward()
        self.d_optimizer.step()
        self.g_optimizer.zero_grad()
        loss = bce(self.discriminator(fake), ones)
        loss.backward()
        self.g_optimizer.step()
        return {"loss": loss}


gan = GAN()
gan.compile()
gan.fit(ring_loader, epochs=GAN_EPOCHS)
check_generator(gan.generator)
