import lightning as L
import torch
from common import GAN_EPOCHS, NOISE, check_generator, make_discriminator, make_generator, ring_loader
from torch.nn.functional import binary_cross_entropy_with_logits as bce


class GAN(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.generator, self.discriminator = make_generator(), make_discriminator()

    def configure_optimizers(self):
        adam = torch.optim.Adam
        return [
            adam(self.generator.parameters(), lr=1e-3, betas=(0.5, 0.9)),
            adam(self.discriminator.parameters(), lr=1e-3, betas=(0.5, 0.9)),
        ]

    def training_step(self, batch, batch_idx):
        g_optimizer, d_optimizer = self.optimizers()
        (real,), ones, zeros = batch, torch.ones(len(batch[0]), 1), torch.zeros(len(batch[0]), 1)
        fake = self.generator(torch.randn(len(real), NOISE))
        d_optimizer.zero_grad()
        self.manual_backward(bce(self.discriminator(real), ones) + bce(self.discriminator(fake.detach()), zeros))
        d_optimizer.step()
        g_optimizer.zero_grad()
        self.manual_backward(bce(self.discriminator(fake), ones))
        g_optimizer.step()


gan = GAN()
L.Trainer(max_epochs=GAN_EPOCHS).fit(gan, ring_loader)
check_generator(gan.generator)
