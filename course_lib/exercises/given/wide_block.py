"""The block of two wide dense layers that exercise 05 makes fit on a chip. Needs Keras."""


def wide_block(width: int, inner: int):
    """A block of two dense layers, rows (b, width) -> (b, width), as a Keras model."""
    import keras

    rows = keras.Input((width,))
    hidden = keras.layers.Dense(inner, activation="relu", name="up")(rows)
    return keras.Model(rows, keras.layers.Dense(width, name="down")(hidden), name="wide_block")
