"""Tasks, which compute the loss or the predictions of a batch."""
