import torch
from common import EPOCHS, check_resumed, make_model, train_loader, val_loader
from composer import Trainer
from composer.models import ComposerClassifier

model = ComposerClassifier(make_model(), num_classes=10)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
trainer = Trainer(
    model=model,
    train_dataloader=train_loader,
    eval_dataloader=val_loader,
    optimizers=optimizer,
    max_duration=f"{EPOCHS}ep",
    run_name="job",
    save_folder="run",
    save_interval="1ep",
    autoresume=True,
)
trainer.fit()
check_resumed(model.module)
