"""CSV, Parquet and JSON Lines, read and written row by row in bounded memory, in training and use alike; .npz read."""
