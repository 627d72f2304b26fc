import keras
from common import EPOCHS, check_accuracy, make_model, train_loader, val_loader

net = make_model()
model = keras.Sequential([keras.layers.TorchModuleWrapper(net)])
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(keras.optimizers.AdamW(3e-3), loss, metrics=["accuracy"])
model.fit(train_loader, epochs=EPOCHS, validation_data=val_loader)
check_accuracy(net)
