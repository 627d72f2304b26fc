import keras
from common import MAX_EPOCHS, check_stopped, make_model, train_loader, val_loader

net = make_model()
model = keras.Sequential([keras.layers.TorchModuleWrapper(net)])
model.compile(keras.optimizers.AdamW(1e-2), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
stop = keras.callbacks.EarlyStopping(patience=3, restore_best_weights=True)
model.fit(train_loader, epochs=MAX_EPOCHS, validation_data=val_loader, callbacks=[stop])
check_stopped(net, stop.best)
