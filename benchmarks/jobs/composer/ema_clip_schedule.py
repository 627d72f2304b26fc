import torch
from common import EPOCHS, check_accuracy, make_model, train_loader, val_loader
from composer import Trainer
from composer.algorithms import EMA, GradientClipping
from composer.models import ComposerClassifier
from composer.optim import CosineAnnealingScheduler

model = ComposerClassifier(make_model(), num_classes=10)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
ema = EMA(half_life=None, smoothing=0.98, update_interval="1ba")
algorithms = [ema, GradientClipping("norm", 1.0)]
trainer = Trainer(
    model=model,
    train_dataloader=train_loader,
    eval_dataloader=val_loader,
    optimizers=optimizer,
    max_duration=f"{EPOCHS}ep",
    algorithms=algorithms,
    schedulers=CosineAnnealingScheduler(),
)
trainer.fit()
ema.ema_model.transfer_ema_params(model)
check_accuracy(model.module)
