import torch
from common import MAX_EPOCHS, check_stopped, make_model, train_loader, val_loader
from composer import Callback, Trainer
from composer.callbacks import EarlyStopper
from composer.models import ComposerClassifier

model = ComposerClassifier(make_model(), num_classes=10)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
stop = EarlyStopper("CrossEntropy", "eval", torch.less, patience=3)


class SaveBest(Callback):
    best = float("inf")

    def eval_end(self, state, logger):
        loss = state.eval_metrics["eval"]["CrossEntropy"].compute().item()
        if loss < self.best:
            self.best = loss
            torch.save(state.model.state_dict(), "best.pt")


best = SaveBest()
trainer = Trainer(
    model=model,
    train_dataloader=train_loader,
    eval_dataloader=val_loader,
    optimizers=optimizer,
    max_duration=f"{MAX_EPOCHS}ep",
    callbacks=[stop, best],
)
trainer.fit()
model.load_state_dict(torch.load("best.pt"))
check_stopped(model.module, best.best)
