import keras
from common import EPOCHS, check_resumed, make_model, train_loader, val_loader

net = make_model()
model = keras.Sequential([keras.layers.TorchModuleWrapper(net)])
model.compile(keras.optimizers.AdamW(3e-3), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
backup = keras.callbacks.BackupAndRestore("run")
model.fit(train_loader, epochs=EPOCHS, validation_data=val_loader, callbacks=[backup])
check_resumed(net)
