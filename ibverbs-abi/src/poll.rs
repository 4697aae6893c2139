//! Polling: the calls of the data path.
