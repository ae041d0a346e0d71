"""The released autocoder behind HTTP: small, closed by a key, silent about what it is asked."""
