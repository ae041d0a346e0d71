"""Tables of a partner's: CSV, Parquet and JSON Lines, read and written row by row in bounded memory."""
