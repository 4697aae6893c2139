//! Memory windows: the functions behind the slots of a context.
