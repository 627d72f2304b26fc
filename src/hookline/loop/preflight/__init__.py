"""Find probable mistakes before step 1: evidence that is collected once, and independent checks of it."""
