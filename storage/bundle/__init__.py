"""The folder that leaves: built, sealed, signed, packed, checked, registered, revoked."""
